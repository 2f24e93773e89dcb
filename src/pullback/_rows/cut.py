r"""A model that mixes samples, cut where it does: \(f(\theta) = \hat f(\theta, s(\theta))\).

The outputs of batch normalisation depend on the other samples only through *statistics* \(s\): sums
over the batch, a few numbers per channel. Given \(s\), sample n depends on sample n only, and

\[ J_n = \frac{\partial \hat f_n}{\partial\theta} + \frac{\partial \hat f_n}{\partial s}\, B,
   \qquad B = \frac{ds}{d\theta}. \]

The first two factors are rows of one sample, like those of a model that mixes nothing; \(B\) takes
as many pulls through the whole batch as there are statistics, where the Jacobian of the batch would
take one for every output of every sample.

The cut is found in the program of the model on the whole batch. An equation that maps the part of
each sample to the part of that sample (`by_sample.py`) stays; the results of any other equation on
the samples are statistics. So the identity above holds for every program, and it is worth using
where the statistics are few.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._base.tree import Structure, structure
from .._compat.jaxpr import (
    Program,
    evaluate,
    has_effects,
    trace,
    with_own_derivative,
    with_params,
)
from .by_sample import by_sample
from .flat import Equation, Flat, Step, needed, run

MAX_GROUPS = 4
"""In how many groups statistics are pulled back: a group that depends on few layers is cheap, but
each one is a program to compile."""


class Parts(NamedTuple):
    """A program on the parts of one sample."""

    flat: Flat
    steps: list[Step]
    axes: dict[int, int]
    """The sample axis of each value that has one."""
    statistics: dict[int, Equation]
    """The values that depend on all samples, and the equation that mixes the samples there."""
    shapes: dict[int, Any]

    def run(self, values: Sequence[Any], index: Any) -> list[Any]:
        """The parts of one sample in the results, for a program without statistics."""
        env = dict(zip(self.flat.inputs, values, strict=True)) | self.flat.constants
        env = run(self.steps, env, index)
        return [env[number] for number in self.flat.outputs]


def parts(program: Program, axes: Sequence[int | None], count: int, checked: bool = True) -> Parts:
    """Find out how a program acts on one of `count` samples, given the axes of its arguments.

    Unless `checked`, derivative rules are trusted to act on one sample where their function does.
    """
    flat = Flat(program)
    whole, _ = needed([equation.step() for equation in flat.equations], flat.outputs)
    live = {number for step in whole for number in step.results}
    found = Parts(flat, [], {k: axis for k, axis in enumerate(axes) if axis is not None}, {}, {})
    made = {number: equation for equation in flat.equations for number in equation.results}
    for equation in flat.equations:
        if live.intersection(equation.results):
            _part(found, equation, made, count, checked)
    return found


def _part(
    found: Parts, equation: Equation, made: dict[int, Equation], count: int, checked: bool
) -> None:
    """Add the step for the part of one sample."""
    axes = [None if arg is None else found.axes.get(arg) for arg in equation.args]
    if all(axis is None for axis in axes):
        found.steps.append(equation.step())
        return
    own = _own_derivative(equation, axes, count, checked)
    local = by_sample(equation.eqn, axes, count) if own is None else None
    if own is not None:
        step, out = own
        found.steps.append(step)
        found.axes.update(zip(equation.results, out, strict=True))
    elif local is not None:
        shared = local.shared or (None,) * len(axes)
        args = [
            arg if axis is None else _share(found, arg, axis, made, count, variable.aval.shape)
            for arg, axis, variable in zip(equation.args, shared, equation.eqn.invars, strict=True)
            if arg is not None
        ]
        found.steps.append(equation.step(with_params(equation.eqn, **local.params), args))
        found.axes.update(zip(equation.results, local.axes, strict=True))
    else:
        for number, variable in zip(equation.results, equation.eqn.outvars, strict=True):
            found.statistics[number] = equation
            found.shapes[number] = jax.ShapeDtypeStruct(variable.aval.shape, variable.aval.dtype)


def _share(
    found: Parts, arg: int, axis: int, made: dict[int, Equation], count: int, shape: tuple
) -> int:
    """Add the step that takes the part of a sample of an array that all samples share."""
    number, length = found.flat.fresh(), shape[axis] // count
    source = made.get(arg)
    if source is not None and source.eqn.primitive.name == "broadcast_in_dim":
        # What is repeated along the sample axis is not made and cut, but repeated less often.
        params = source.eqn.params
        old = source.eqn.invars[0].aval.shape
        kept = {int(to): old[k] for k, to in enumerate(params["broadcast_dimensions"])}
        if len(source.args) == 1 and kept.get(axis, 1) == 1 and shape[axis] != 1:
            sizes = (*shape[:axis], length, *shape[axis + 1 :])
            step = source.step(with_params(source.eqn, shape=sizes))
            found.steps.append(Step(step.run, step.args, (number,)))
            return number

    def cut(values, index):
        return [jax.lax.dynamic_slice_in_dim(values[0], index * length, length, axis)]

    found.steps.append(Step(cut, (arg,), (number,)))
    return number


def _own_derivative(
    equation: Equation, axes: Sequence[int | None], count: int, checked: bool
) -> tuple[Step, tuple[int, ...]] | None:
    """The step of an equation with a derivative rule of its own (relu), which is kept."""
    program = with_own_derivative(equation.eqn)
    variables = equation.eqn.invars
    if program is None or not all(jnp.issubdtype(v.aval.dtype, jnp.floating) for v in variables):
        return None
    value = parts(program, axes, count, checked)
    out = tuple(value.axes.get(number) for number in value.flat.outputs)
    if value.statistics or None in out:
        return None

    def derivative(primals, tangents):
        whole = lambda *values: evaluate(equation.program, equation.eqn, values)
        return jax.jvp(whole, primals, tangents)

    def rule() -> Parts | None:
        # A rule may call the function it is the rule of, so that the rules in it are not checked.
        like = tuple(jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in variables)
        found = parts(trace(derivative, like, like), (*axes, *axes), count, checked=False)
        moved = tuple(found.axes.get(number) for number in found.flat.outputs)
        return None if found.statistics or moved != (*out, *out) else found

    if checked and rule() is None:
        return None

    @jax.custom_jvp
    def local(index, *values):
        return tuple(value.run(values, index))

    @local.defjvp
    def _(primals, tangents):
        found = rule()
        assert found is not None
        results = found.run((*primals[1:], *tangents[1:]), primals[0])
        return tuple(results[: len(out)]), tuple(results[len(out) :])

    args = tuple(arg for arg in equation.args if arg is not None)
    step = Step(lambda values, index: local(index, *values), args, equation.results)
    return step, tuple(axis for axis in out if axis is not None)


class Found:
    """Where a program is cut. Compared by identity: it belongs to one trace."""

    def __init__(self, program: Program, leaves: int, count: int):
        """Cut a program of parameter leaves and of inputs, whose first axis is that of samples."""
        inputs = len(program.inputs) - leaves
        found = parts(program, [None] * leaves + [0] * inputs, count)
        self.flat, self.axes = found.flat, found.axes
        self.local, used = needed(found.steps, self.flat.outputs)
        live = [number for number in found.statistics if number in used]
        self.equations = [equation.step() for equation in self.flat.equations]
        self.depends = {number: frozenset([number]) for number in range(leaves)}
        """The parameter leaves on which a value depends."""
        for step in self.equations:
            below = frozenset().union(*(self.depends.get(arg, ()) for arg in step.args))
            self.depends.update(dict.fromkeys(step.results, below))
        self.influencing = frozenset().union(*(self.depends[number] for number in live))
        floating = lambda n: jnp.issubdtype(found.shapes[n].dtype, jnp.inexact)
        self.fixed = [n for n in live if not (self.depends[n] and floating(n))]
        """Statistics that do not depend on the parameters, or are not differentiable."""
        self.groups = _groups([n for n in live if n not in self.fixed], self.depends)
        """The other statistics, in groups that depend on more and more parameter leaves."""
        self.moving = [number for group in self.groups for number in group]
        self.structure = structure([found.shapes[number] for number in self.moving])
        """How they lie in a flat vector."""
        self.mixing = {n: found.statistics[n].eqn.primitive.name for n in self.moving}
        """The equations that mix samples."""


def _groups(numbers: list[int], depends: dict[int, frozenset[int]]) -> list[list[int]]:
    """At most `MAX_GROUPS` groups of values, by the number of leaves on which they depend."""
    sizes = sorted({len(depends[number]) for number in numbers})
    parts = np.array_split(sizes, min(MAX_GROUPS, len(sizes))) if sizes else []
    return [[n for n in numbers if len(depends[n]) in part] for part in parts]


class Cut(eqx.Module):
    """A model on one batch, cut at its statistics."""

    found: Found = eqx.field(static=True)
    constants: dict[int, Any]

    @property
    def structure(self) -> Structure:
        """How the statistics lie in a flat vector."""
        return self.found.structure

    def statistics(
        self, numbers: Sequence[int], leaves: Sequence[Array], inputs: Sequence[Array]
    ) -> list[Array]:
        """Some statistics, from parameter leaves and the inputs of the batch."""
        found = self.found
        env = dict(zip(found.flat.inputs, (*leaves, *inputs), strict=True)) | self.constants
        env = run(needed(found.equations, numbers)[0], env)
        return [env[number] for number in numbers]

    def one(
        self,
        leaves: Sequence[Array],
        statistics: Sequence[Array],
        fixed: Sequence[Array],
        inputs: Sequence[Array],
        index: Array,
    ) -> list[Array]:
        """The outputs of sample number `index`, given the statistics."""
        found = self.found
        names = (*found.flat.inputs, *found.moving, *found.fixed)
        values = (*leaves, *(x[None] for x in inputs), *statistics, *fixed)
        env = run(found.local, self.constants | dict(zip(names, values, strict=True)), index)
        return [
            env[number][0]
            if number in found.axes
            else jax.lax.dynamic_index_in_dim(env[number], index, 0, keepdims=False)
            for number in found.flat.outputs
        ]


class Uncut(eqx.Module):
    """A model on one batch whose samples are not separated, and the reason."""

    reason: str = eqx.field(static=True)


def cut(
    function: Callable[[list[Any], list[Any]], list[Any]], leaves: list[Any], inputs: list[Any]
) -> Cut | Uncut:
    """Cut a function of parameter leaves and inputs of a batch at its statistics.

    Not where the Jacobian of the batch takes fewer products.
    """
    count = inputs[0].shape[0]
    program = trace(function, leaves, inputs)
    if has_effects(program):
        return Uncut("the model has side effects")
    found = Found(program, len(leaves), count)
    if any(jnp.issubdtype(dtype, jnp.complexfloating) for dtype in found.structure.dtypes):
        return Uncut("a statistic of the batch is complex")
    outputs = [v.aval.shape for v in program.outputs]
    for number, shape in zip(found.flat.outputs, outputs, strict=True):
        if found.axes.get(number, 0) != 0 or shape[:1] != (count,):
            return Uncut("the samples of the outputs are not those of the inputs")
    rows = sum(math.prod(shape) for shape in outputs)
    size = sum(math.prod(leaf.shape) for leaf in leaves)
    statistics = found.structure.size
    if statistics + rows // count >= min(rows, size):
        worst = max(zip(found.structure.sizes, found.mixing.values(), strict=True), default=(0, ""))
        where = f", {worst[0]} of them in {worst[1]}" if worst[0] else ""
        return Uncut(
            f"the samples mix in {statistics} statistics{where}: the {rows} x {size} Jacobian of "
            "the batch takes fewer products"
        )
    # Constants may belong to the trace: they are data of the cut, not part of its description.
    constants, found.flat.constants = found.flat.constants, {}
    return Cut(found, constants)
