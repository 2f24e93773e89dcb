"""What `BlockDescent` keeps between steps, and the record of a step."""

import equinox as eqx
from jaxtyping import Array, Float, PyTree

from .._base.results import RESULTS
from .._base.show import table
from .._base.types import Count, Flat, Scalar
from . import shown


class BlockState(eqx.Module):
    """The state of `BlockDescent` between steps."""

    count: Count
    """The number of steps made, failed ones included."""
    updates: Count
    """k, the number of batches in the averages."""
    metrics: tuple[Float[Array, "b b"], ...]
    """M_b, the average of each block, before its bias is corrected."""
    inverses: tuple[Float[Array, "b b"], ...]
    """(Ĝ_b + λ)⁻¹, up to rounding."""
    velocity: Flat
    """v."""

    def __repr__(self) -> str:
        return shown.block_state(self)


class BlockRecord(eqx.Module):
    """The record of one step of `BlockDescent`."""

    step: Count
    """The number of this step, from 0."""
    loss: Scalar
    """Before the step."""
    gradient_norm: Scalar
    """The Euclidean norm of the gradient before the step."""
    norm: Scalar
    """The Euclidean norm of the change of the parameters."""
    metric_norm: Scalar
    """The length of t δ in the averaged metric, t √(gᵀδ)."""
    rate: Scalar
    """t, what was taken of v."""
    damping: Scalar
    """λ."""
    residual: Scalar
    """The largest ‖g_b - (Ĝ_b + λ)δ_b‖/‖g_b‖, recomputed."""
    accepted: Array
    """Whether the step was taken."""
    result: RESULTS
    """The outcome, a code that is data."""
    losses: PyTree = None
    """The loss of each of several `Terms` before the step, without its weight."""
    weights: PyTree = None
    """The weight of each of several `Terms`."""

    @property
    def failed(self) -> Array:
        """Whether there was no direction to follow."""
        return ~self.accepted

    def __repr__(self) -> str:
        return shown.block_line(self)

    def _repr_html_(self) -> str:
        return table(shown.block_lines(self))
