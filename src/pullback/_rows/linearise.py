r"""The model at a point, linearised once: \((f, \theta) \mapsto z,\ J,\ J^\top\).

There is no loss and no metric here. The Jacobian has two forms:

- `linearise` gives products \(Jv\), \(J^\top c\) with the whole batch, at the cost of about one
  gradient each;
- `block` gives the dense rows \(W_i^\top J_i\) of **one sample** (\(W_i\) any tall matrix, e.g. the
  root of a metric). The samples are independent, so that the rows of the batch cost as many
  products as *one* sample has outputs; a Jacobian of the batched function would cost N times that.

Complex outputs are pairs of real ones here, and J is real (`_base/pairs.py`).
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from .._base.pairs import Pairs
from .._base.part import Part
from .._base.tree import Structure, split, structure
from .._base.types import Flat, OutputCovector, Outputs, OutputVector, Params


class Linearisation(eqx.Module):
    """z = f(θ) and the products with its Jacobian."""

    outputs: Outputs
    tangent_map: Callable
    params: Structure = eqx.field(static=True)
    like: Structure = eqx.field(static=True)
    state: PyTree
    """The new state of the model; `None` for a model without."""
    part: Part | None = None
    """The leaves that are parameters, if the tangent map has others too."""
    pairs: Pairs | None = eqx.field(static=True, default=None)
    """Which outputs of the model are complex; they are pairs here. `None` if none is."""

    @property
    def parts(self) -> "tuple[Linearisation, ...]":
        """The model of each term: this one."""
        return (self,)

    def pushforward(self, v: Flat) -> OutputVector:
        """J v."""
        return self.push(self.params.unravel(v))

    def push(self, tangent: PyTree) -> OutputVector:
        """J v of a tree v."""
        return self.tangent_map(tangent if self.part is None else self.part.completed(tangent))

    def pull(self, c: OutputCovector) -> Flat:
        """Jᵀ c."""
        return self.params.ravel_covector(self.transposed(c))

    def transposed(self, c: OutputCovector) -> PyTree:
        """Jᵀ c as a tree, in the convention of `jax.grad`."""
        whole = self.params if self.part is None else self.part.whole
        leaves = [
            jax.ShapeDtypeStruct(s, t) for s, t in zip(whole.shapes, whole.dtypes, strict=True)
        ]
        primal = jax.tree.unflatten(whole.treedef, leaves)
        pulled = jax.linear_transpose(self.tangent_map, primal)(c)[0]
        return pulled if self.part is None else self.part.select(pulled)

    def own(self, outputs: Outputs) -> Outputs:
        """Outputs, or a vector there, as the model returns them: complex where it does."""
        return outputs if self.pairs is None else self.pairs.whole(outputs)

    def real(self, vector: OutputVector) -> OutputVector:
        """The inverse of `own`."""
        return vector if self.pairs is None else self.pairs.real(vector)


def linearise(
    function: Callable[[Params], Any], point: Params, params: Structure, has_state: bool = False
) -> Linearisation:
    """Linearise a function of the parameters; with `has_state` it returns outputs and a state."""
    static = []

    def coordinates(point):
        outputs, state = function(point) if has_state else (function(point), None)
        pairs = Pairs.of(outputs)
        moving, carried = split(outputs if pairs is None else pairs.real(outputs))
        arrays, rest = eqx.partition((carried, state), eqx.is_array)
        # `jax.linearize` returns arrays only: other leaves leave the trace here.
        static[:] = [rest, pairs]
        return moving, arrays

    moving, tangent_map, arrays = jax.linearize(coordinates, point, has_aux=True)
    carried, state = eqx.combine(arrays, static[0])
    return Linearisation(
        eqx.combine(moving, carried), tangent_map, params, structure(moving), state, None, static[1]
    )


def block(
    function: Callable[[Params], Outputs],
    point: Params,
    params: Structure,
    push: Callable[[OutputVector], Float[Array, " q"]],
    pull: Callable[[Float[Array, " q"]], OutputCovector],
    size: int,
) -> Float[Array, "q P"]:
    """Wᵀ J of one function, by forward mode (P products) or reverse mode (q products).

    The mode with fewer products is taken. `push` is v -> Wᵀ v, `pull` is w -> W w, `size` is q.
    """

    def coordinates(point):
        return split(function(point))[0]

    if size <= params.size:
        _, vjp = jax.vjp(coordinates, point)
        pulled = lambda w: params.ravel_covector(vjp(pull(w))[0])
        return jax.vmap(pulled)(jnp.eye(size, dtype=params.dtype))
    _, jvp = jax.linearize(coordinates, point)
    return jax.vmap(lambda v: push(jvp(params.unravel(v))), out_axes=1)(
        jnp.eye(params.size, dtype=params.dtype)
    )


def over_samples(function: Callable, samples: PyTree, count: int, chunk: int) -> PyTree:
    """A function of one sample for all samples, `chunk` samples at a time."""
    if chunk >= count:
        return jax.vmap(function)(samples)
    return jax.lax.map(function, samples, batch_size=chunk)


def sum_over_samples(
    function: Callable[[PyTree], PyTree], samples: PyTree, count: int, chunk: int
) -> PyTree:
    """The sum of a function of a block of samples over all blocks of `chunk` samples."""
    if chunk >= count:
        return function(samples)
    whole = count // chunk
    head = jax.tree.map(lambda x: x[: whole * chunk].reshape(whole, chunk, *x.shape[1:]), samples)
    first = jax.tree.map(lambda x: x[0], head)
    rest = jax.tree.map(lambda x: x[1:], head)

    def add(total, samples):
        return jax.tree.map(jnp.add, total, function(samples))

    total, _ = jax.lax.scan(
        lambda total, samples: (add(total, samples), None), function(first), rest
    )
    return (
        add(total, jax.tree.map(lambda x: x[whole * chunk :], samples)) if count % chunk else total
    )
