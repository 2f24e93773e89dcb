"""Mutants of the claims on what the sources leave open."""

import jax.numpy as jnp

from ._tools import CUT, DAMPED, PAPERS, Mutant, instead, made, scaled

OURS: dict[str, dict[str, Mutant]] = {
    "newton-flow": {"the flow is 1 % too far": scaled(PAPERS + "ours.newton_flow.natural_flow")},
    "limit-direction": {
        "the limit of the library is 1 % off": scaled("pullback.linear.Logistic.limit_direction"),
        "the weights are those of a start at zero": made(
            "pullback.linear.Logistic.limit_direction",
            lambda f: lambda self, x, y, beta=None: f(self, x, y),
        ),
    },
    "singular-metric": DAMPED,
    "glm-irls": DAMPED | CUT,
    "saturation": DAMPED,
    "parametrisation": {
        "the natural gradient of diagonal networks is 0.1 % off": scaled(
            "pullback.linear.Diagonal.natural_gradient", 1.001
        )
    },
    "min-l1": {
        "the projection is 1 % off": scaled(PAPERS + "ours.min_l1.hyperbolic_projection"),
        "the closed form of the flow is 1 % off": scaled("pullback.linear.Diagonal.flow"),
        "the interpolant of least l1 norm is that of least l2 norm": instead(
            PAPERS + "ours.min_l1.l1_interpolant", lambda x, y: jnp.linalg.pinv(x) @ y
        ),
    },
    "masked-completion": {
        "the matrix has rank 3": made(
            PAPERS + "ours.masked_completion.sample_task",
            lambda f: lambda rng, size, rank, observed: f(rng, size, 3, observed),
        )
    },
    "masked-steps": {
        "the natural gradient is a tenth of it": scaled(
            "pullback.linear.MatrixProduct.masked_natural_gradient", 0.1
        )
    },
    "commuting-completion": {
        "the split formula is followed": instead(
            "pullback.linear.MatrixProduct.masked_natural_gradient",
            lambda self, factors, target, mask: self.split(factors, target, mask),
        ),
        "the natural gradient is 0.001 off in every entry": scaled(
            "pullback.linear.MatrixProduct.masked_natural_gradient", 1.0, 1e-3
        ),
    },
    "batch-fisher": {
        "the Fisher matrix is left out": instead(
            "pullback.linear.Logistic.natural_gradient",
            lambda self, beta, x, y: self.gradient(beta, x, y) / len(y),
        ),
        "the mean over batches is the inverse of all rows": instead(
            PAPERS + "depth._batches.mean_inverse", lambda signed, size: jnp.linalg.pinv(signed)
        ),
    },
    "peak": {"the formula is 5 % too large": scaled(PAPERS + "ours.peak.theory", 1.05)},
    "full-rank-solver": {
        "every driver reveals the rank": made(
            PAPERS + "ours.full_rank_solver.solve",
            lambda f: lambda driver, *rest: f("gelsd", *rest),
        )
    },
}
