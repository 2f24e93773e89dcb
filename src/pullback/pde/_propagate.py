r"""Value, first derivatives and Laplacian of every array of a program, in one pass.

Along directions \(v_1 \dots v_k\) every array \(a\) of the program carries

\[ a, \qquad \partial_i a = \partial_{v_i} a \ (i \le k), \qquad
\Delta a = \sum_{i \le m} \partial_{v_i}^2 a, \]

and an equation \(b = f(a)\) passes them on by the chain rule,

\[ \partial_i b = Df\,\partial_i a, \qquad
\Delta b = Df\,\Delta a + \sum_{i \le m} D^2 f[\partial_i a, \partial_i a]. \]

A linear equation does to all of them what it does to the value: the k first derivatives are rows of
one matrix product. A product has the mixed term \(2\sum_i \partial_i a\,\partial_i b\), a function
of entries its own two derivatives. Any other equation goes through two forward derivatives along
each direction, so that nothing that JAX differentiates is left out.

Second derivatives one direction at a time (nested `jax.jvp`) carry k further rows instead of one.
By hand: `jax.experimental.jet` goes along one direction at a time and has no rules for loops and
branches, and `folx` would be a second place that depends on the internals of JAX.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._compat.jaxpr import (
    JaxEquation,
    Program,
    called,
    evaluate,
    is_literal,
    trace,
    with_own_derivative,
)

LINEAR = frozenset(
    """neg convert_element_type reshape transpose broadcast_in_dim squeeze expand_dims reduce_sum
    slice rev cumsum copy real imag conj dynamic_slice split device_put""".split()
)
"""Linear in the one argument that can move."""
ADDITIVE = frozenset(
    """add sub add_any concatenate pad select_n dynamic_update_slice complex scatter-add
    gather""".split()
)
"""Linear in all floating arguments together: one that does not move adds nothing, nor does the
`fill_value` of a `gather`."""
BILINEAR = frozenset("mul dot_general conv_general_dilated".split())
ENTRYWISE = frozenset(
    """tanh sin cos tan exp exp2 log log1p expm1 logistic sqrt rsqrt cbrt erf erfc erf_inv abs sign
    floor ceil round sinh cosh asinh acosh atanh asin acos atan integer_pow square pow div max min
    atan2 rem lgamma digamma clamp reduce_precision""".split()
)
"""Functions of the entries; below also whole programs of them with a derivative rule of their own
(`relu`, `logaddexp`)."""
INNER = ENTRYWISE | frozenset(
    """neg convert_element_type copy mul add sub add_any select_n eq ne lt le gt ge and or not
    is_finite stop_gradient broadcast_in_dim""".split()
)


class Series(NamedTuple):
    """An array that moves with the point."""

    value: Array
    first: Float[Array, "k ..."]
    """The first derivatives."""
    second: Array | None
    """The sum of the second derivatives along the first m directions; `None` if it is zero."""


def propagate(program: Program, inputs: Sequence[Any], summed: int) -> list[Any]:
    """The results of a program, each a `Series` or, if it does not move, an array.

    `summed` is m, the number of directions whose second derivatives are summed.
    """
    env = dict(zip(program.inputs, inputs, strict=True))
    env |= dict(zip(program.jaxpr.constvars, program.consts, strict=True))
    for eqn in program.jaxpr.eqns:
        args = [v.val if is_literal(v) else env[v] for v in eqn.invars]
        outs = _equation(program, eqn, args, summed)
        env.update(zip(eqn.outvars, outs, strict=True))
    return [v.val if is_literal(v) else env[v] for v in program.outputs]


def _equation(program: Program, eqn: JaxEquation, args: list[Any], summed: int) -> list[Any]:
    """The results of one equation."""
    # A name that stands twice in an equation (x * x) is one argument.
    place = [k if is_literal(v) else eqn.invars.index(v) for k, v in enumerate(eqn.invars)]
    run = lambda values: evaluate(program, eqn, [values[k] for k in place])
    moving = [k for k, a in enumerate(args) if isinstance(a, Series) and place[k] == k]
    floating = [jnp.issubdtype(v.aval.dtype, jnp.inexact) for v in eqn.outvars]
    if not moving or not any(floating):
        return run(_values(args))
    inner = called(eqn)
    if inner is not None:
        return propagate(inner, args, summed)
    name, twice = eqn.primitive.name, place != sorted(set(place))
    # Of x / x the one argument that moves is both numerator and denominator.
    quotient = name == "div" and moving == [0] and not twice
    if name in LINEAR or name in ADDITIVE or quotient:
        return _linear(run, args, moving, name in ADDITIVE)
    if name in BILINEAR and not twice:
        return [_bilinear(run, args, moving, summed)]
    if _entrywise(eqn, run, args, moving):
        return [_of_entries(run, args, moving, summed)]
    return _any(run, args, moving, floating, summed)


def _values(args: Sequence[Any]) -> list[Any]:
    """The values alone."""
    return [a.value if isinstance(a, Series) else a for a in args]


def _of_moving(run: Callable, values: list[Any], moving: list[int]) -> Callable:
    """An equation as a function of the arguments that move."""

    def function(given):
        every = list(values)
        for k, value in zip(moving, given, strict=True):
            every[k] = value
        return run(every)

    return function


def _linear(run: Callable, args: list[Any], moving: list[int], additive: bool) -> list[Any]:
    """A linear equation, applied to all derivatives."""
    values = _values(args)
    function = _of_moving(run, values, moving)
    # JAX's own rule leaves out what does not move and may be a literal of the equation.
    along = function
    if additive:
        points = [values[k] for k in moving]
        along = lambda tangents: jax.jvp(function, (points,), (tangents,))[1]
    firsts = jax.vmap(along)([args[k].first for k in moving])
    seconds = [None] * len(firsts)
    if any(args[k].second is not None for k in moving):
        seconds = along([_second(args[k]) for k in moving])
    return [Series(*out) for out in zip(run(values), firsts, seconds, strict=True)]


def _second(series: Series) -> Array:
    """The summed second derivatives as an array."""
    return jnp.zeros_like(series.value) if series.second is None else series.second


def _total(parts: list[Array | None]) -> Array | None:
    """The sum of those that are not zero."""
    found = [part for part in parts if part is not None]
    return sum(found[1:], start=found[0]) if found else None


def _bilinear(run: Callable, args: list[Any], moving: list[int], summed: int) -> Series:
    """A product of two arguments, one or both of which move."""
    values = _values(args)
    by = lambda k: lambda tangent: run([tangent if j == k else v for j, v in enumerate(values)])[0]
    firsts: list[Array | None] = [jax.vmap(by(k))(args[k].first) for k in moving]
    seconds = [None if args[k].second is None else by(k)(args[k].second) for k in moving]
    if len(moving) == 2 and summed:
        both = jax.vmap(lambda a, b: run([a, b])[0])(*(a.first[:summed] for a in args))
        seconds.append(2 * jnp.sum(both, axis=0))
    first = _total(firsts)
    assert first is not None
    return Series(run(values)[0], first, _total(seconds))


def _entrywise(eqn: JaxEquation, run: Callable, args: list[Any], moving: list[int]) -> bool:
    """Whether an equation is a real function of entries, so that two numbers describe it."""
    out = eqn.outvars[0].aval
    real = [jnp.issubdtype(v.aval.dtype, jnp.floating) for v in (eqn.invars[k] for k in moving)]
    same = [eqn.invars[k].aval.shape == out.shape for k in moving]
    if len(eqn.outvars) != 1 or not all(real) or not all(same):
        return False
    if eqn.primitive.name in ENTRYWISE or eqn.primitive.name == "mul":
        return True
    inner = with_own_derivative(eqn)
    if inner is None or not _all_entrywise(inner, out.shape):
        return False
    # A rule may mix the entries although the function does not (a gradient that is normalised).
    values = _values(args)
    every = _of_moving(run, values, moving)
    points = [values[k] for k in moving]
    push = lambda p, v: jax.jvp(every, (p,), (v,))[1]
    twice = trace(lambda p, v: jax.jvp(lambda q: push(q, v), (p,), (v,))[1], points, points)
    return _all_entrywise(twice, out.shape)


def _all_entrywise(program: Program, shape: tuple[int, ...]) -> bool:
    """Whether a program is made of functions of entries only."""
    if any(v.aval.shape not in ((), shape) for v in program.inputs):
        return False
    for eqn in program.jaxpr.eqns:
        inside = called(eqn) or with_own_derivative(eqn)
        if inside is not None:
            if not _all_entrywise(inside, shape):
                return False
            continue
        if eqn.primitive.name not in INNER:
            return False
        if eqn.primitive.name == "broadcast_in_dim" and eqn.invars[0].aval.shape not in ((), shape):
            return False
    return True


def _of_entries(run: Callable, args: list[Any], moving: list[int], summed: int) -> Series:
    """A function of entries, by its own first and second derivatives."""
    values = _values(args)
    every = _of_moving(run, values, moving)
    function = lambda *given: every(given)[0]
    points = [values[k] for k in moving]
    partials = [_partial(function, i) for i in range(len(moving))]
    slopes = [partial(*points) for partial in partials]
    first = _total([p[None] * args[k].first for p, k in zip(slopes, moving, strict=True)])
    assert first is not None
    seconds = [
        None if args[k].second is None else p * args[k].second
        for p, k in zip(slopes, moving, strict=True)
    ]
    for i in range(len(moving) if summed else 0):
        for j in range(i + 1):
            one, other = (args[moving[index]].first[:summed] for index in (i, j))
            mixed = _partial(partials[i], j)(*points) * jnp.sum(one * other, axis=0)
            seconds.append(mixed if i == j else 2 * mixed)
    return Series(function(*points), first, _total(seconds))


def _partial(function: Callable[..., Array], index: int) -> Callable[..., Array]:
    """The derivative of a function of entries by one argument, entry by entry."""

    def derivative(*points):
        def alone(x):
            return function(*(x if j == index else y for j, y in enumerate(points)))

        return jax.jvp(alone, (points[index],), (jnp.ones_like(points[index]),))[1]

    return derivative


def _any(
    run: Callable, args: list[Any], moving: list[int], floating: list[bool], summed: int
) -> list[Any]:
    """Any equation, by two forward derivatives along each direction."""
    values = _values(args)
    points = [values[k] for k in moving]
    every = _of_moving(run, values, moving)

    def function(points):
        return [out for out, inexact in zip(every(points), floating, strict=True) if inexact]

    push = lambda points, tangents: jax.jvp(function, (points,), (tangents,))[1]
    directions = [args[k].first for k in moving]
    firsts = jax.vmap(lambda v: push(points, v))(directions)
    seconds: list[Array | None] = [None] * len(firsts)
    if summed:
        bend = lambda v: jax.jvp(lambda p: push(p, v), (points,), (v,))[1]
        bent = jax.vmap(bend)([v[:summed] for v in directions])
        seconds = [jnp.sum(second, axis=0) for second in bent]
        if any(args[k].second is not None for k in moving):
            moved = push(points, [_second(args[k]) for k in moving])
            seconds = [a + b for a, b in zip(seconds, moved, strict=True)]
    derivatives = iter(zip(firsts, seconds, strict=True))
    return [
        Series(value, *next(derivatives)) if inexact else value
        for value, inexact in zip(run(values), floating, strict=True)
    ]
