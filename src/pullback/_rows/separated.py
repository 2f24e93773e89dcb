r"""The rows of one sample of a model that mixes samples, from its cut (`cut.py`):

\[ J_n = \frac{\partial \hat f_n}{\partial\theta} + \frac{\partial \hat f_n}{\partial s}\, B . \]
"""

from collections.abc import Callable

import equinox as eqx
import jax
from jaxtyping import Array, Float

from .._base.tree import Structure, split, structure
from .._base.types import Params
from .._problem.composite import Objective
from .cut import Cut, Uncut, cut
from .linearise import block


class Separated(eqx.Module):
    """The statistics of a batch at a point, and how they change with the parameters."""

    cut: Cut
    params: Params
    statistics: list[Array]
    fixed: list[Array]
    influence: Float[Array, "S P"]
    """B = ds/dθ."""

    def block(
        self,
        inputs: list[Array],
        index: Array,
        like: Structure,
        push: Callable,
        pull: Callable,
        size: int,
    ) -> Float[Array, "q P"]:
        """Return Wᵀ J of one sample, with W as for `linearise.block`."""

        def outputs(point):
            leaves = jax.tree.leaves(point[0])
            found = self.cut.one(leaves, point[1], self.fixed, inputs, index)
            return jax.tree.unflatten(like.treedef, found)

        point = (self.params, self.statistics)
        rows = block(outputs, point, structure(point), push, pull, size)
        size = self.influence.shape[1]
        return rows[:, :size] + rows[:, size:] @ self.influence.astype(rows.dtype)


def separable(objective: Objective, params: Params) -> Cut | Uncut:
    """Cut the model of a problem at the statistics of the batch."""
    moving, carried = split(params)
    leaves, treedef = jax.tree.flatten(moving)
    arrays, static = eqx.partition(objective.batch.inputs, eqx.is_array)
    inputs, input_tree = jax.tree.flatten(arrays)

    def outputs(leaves, inputs):
        point = eqx.combine(jax.tree.unflatten(treedef, leaves), carried)
        batch = eqx.combine(jax.tree.unflatten(input_tree, inputs), static)
        return jax.tree.leaves(split(objective.problem.outputs(point, batch))[0])

    return cut(outputs, leaves, inputs)


def separate(found: Cut, like: Structure, objective: Objective, params: Params) -> Separated:
    """Return the statistics at a point, and their derivative: one pull for each of them."""
    moving = split(params)[0]
    inputs = jax.tree.leaves(eqx.filter(objective.batch.inputs, eqx.is_array))
    numbers, fixed = found.found.moving, found.found.fixed

    def statistics(moving, numbers=numbers):
        return found.statistics(numbers, jax.tree.leaves(moving), inputs)

    own = found.structure
    influence = block(statistics, moving, like, own.ravel, own.unravel, own.size)
    return Separated(found, moving, statistics(moving), statistics(moving, fixed), influence)
