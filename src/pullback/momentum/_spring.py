r"""`Spring`: subsampled projected-increment natural gradient (Goldshlager, Abrahamsen, Lin, 2024).

A minibatch determines a step only in the directions that its metric sees. Of all steps that
minimise the model of this batch, take the one nearest to \(\mu\) times the last,

\[ \phi_k = \mu\phi_{k-1} - A^+(r + A\,\mu\phi_{k-1}) , \]

so that this batch decides what it can and earlier batches decide the rest (damped, the same with
\(A^\top(K + λ)^{-1}\) in the place of \(A^+\)). \(\mu = 0\) is the natural gradient.

With `max_step` \(= \sqrt C\) and `corrected`, the step of rate \(\eta\) is the published one
(Guzmán-Cordero et al., 2025),

\[ \theta_{k+1} = \theta_k + \min\Big(\eta, \frac{\sqrt C}{\|\phi_k\|}\Big)
\frac{\phi_k}{\sqrt{1 - \mu^{2k}}} , \]

where \(k\) counts the steps since the memory was empty. The step is bounded; \(\phi_k\) is
remembered as it is.

`max_norm` is ours: it scales \(\phi_k\) down to a norm and remembers the scaled one, so that one
long direction does not return in the steps after it.
"""

from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp

from .._base.checks import instance, positive
from .._base.types import Count, Flat, Scalar
from ._base import AbstractMomentum


class Counted(NamedTuple):
    """The memory of `Spring(corrected=True)`."""

    last: Flat
    """φ."""
    count: Count
    """The number of steps since φ was zero."""


class Spring(AbstractMomentum):
    """The minimum-norm correction of the last direction.

    ```python
    momentum = pb.Spring(0.9, max_step=0.03, corrected=True)
    opt = pb.NaturalGradientDescent(problem, inverse=pb.Tikhonov(1e-3), step=0.1, momentum=momentum)
    ```
    """

    mu: float | Scalar
    max_norm: float | Scalar | None
    max_step: float | Scalar | None
    corrected: bool = eqx.field(static=True)
    numbers_are_data: ClassVar[bool] = True

    def __init__(
        self,
        mu: float | Scalar = 0.9,
        max_norm: float | Scalar | None = None,
        *,
        max_step: float | Scalar | None = None,
        corrected: bool = False,
    ):
        """Choose the momentum.

        **Arguments:**

        - `mu`: at least 0 and below 1.
        - `max_norm`: the largest Euclidean norm of φ; a longer φ is scaled down to it and
            remembered scaled. It is not part of the published method. Defaults to no bound.
        - `max_step`: √C, the published bound: a step takes at most the part √C/‖φ‖ of its
            direction, and φ is remembered as it is. Defaults to no bound.
        - `corrected`: whether the direction is φ/√(1 - μ²ᵏ), which corrects the bias of the first
            steps towards zero; then early steps may be longer than `max_step` by that factor.
        """
        positive("Spring", "mu", mu, below=1, zero=True)
        for name, bound in (("max_norm", max_norm), ("max_step", max_step)):
            if bound is not None:
                positive("Spring", name, bound)
        if max_norm is not None and max_step is not None:
            raise ValueError(
                "Spring takes max_step, which bounds the step, or max_norm, which bounds what is "
                "remembered, not both, e.g. Spring(0.9, max_step=0.03)."
            )
        instance("Spring", "corrected", corrected, bool, "a boolean", "Spring(corrected=True)")
        self.mu = mu
        self.max_norm = max_norm
        self.max_step = max_step
        self.corrected = corrected

    def init(self, size, dtype):
        last = jnp.zeros(size, dtype)
        return Counted(last, jnp.zeros((), jnp.int32)) if self.corrected else last

    def corrects(self, memory):
        last = memory.last if self.corrected else memory
        return jnp.asarray(self.mu, last.dtype) * last

    def direction(self, sub, memory):
        phi = sub.correction(self.corrects(memory))
        if self.max_norm is not None:
            phi = phi * _at_most(jnp.asarray(self.max_norm, sub.dtype), phi)
        return phi / self._bias(memory, sub.dtype)

    def remember(self, sub, memory, direction):
        phi = direction * self._bias(memory, direction.dtype)
        return Counted(phi, memory.count + 1) if self.corrected else phi

    def limit(self, memory, direction):
        if self.max_step is None:
            return None
        phi = direction * self._bias(memory, direction.dtype)
        size = jnp.linalg.norm(phi)
        longest = jnp.asarray(self.max_step, phi.dtype)
        return jnp.where(size > 0, longest / jnp.where(size > 0, size, 1.0), jnp.inf)

    def _bias(self, memory: Any, dtype: Any) -> Scalar:
        """Return √(1 - μ^{2k}) of the step to be made; 1 if it is not corrected."""
        if not self.corrected:
            return jnp.ones((), dtype)
        power = 2 * (memory.count + 1).astype(dtype)
        return jnp.sqrt(1 - jnp.asarray(self.mu, dtype) ** power)


def _at_most(bound: Scalar, vector: Flat) -> Scalar:
    """Return the factor that scales a vector down to a norm; 1 if it is not longer."""
    size = jnp.linalg.norm(vector)
    longer = size > bound
    return jnp.where(longer, bound / jnp.where(longer, size, 1.0), 1.0)
