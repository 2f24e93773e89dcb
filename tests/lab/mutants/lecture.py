"""Mutants of the claims on Grosse, lecture 3."""

import dataclasses

import jax.numpy as jnp

from ._tools import DAMPED, PAPERS, PLAIN, Mutant, called, instead, made, scaled

LECTURE: dict[str, dict[str, Mutant]] = {
    "rosenbrock": DAMPED,
    "rosenbrock-valley": DAMPED
    | {
        "the valley is a plain": instead(
            PAPERS + "lecture.rosenbrock.outputs", lambda x: jnp.stack([1 - x[0], x[1] - x[0] ** 2])
        )
    },
    "proximal-implicit": {
        "the weight is 1 % too large": called(
            "pullback.proximal_step", weight=lambda weight: 1.01 * weight
        )
    },
    "mirror-descent": {
        "the weight is 1 % too large": called(
            "pullback.mirror_step", weight=lambda weight: 1.01 * weight
        )
    },
    "proximal-natural": {
        "the weight is 1 % too large": called(
            "pullback.linearised_proximal_step", weight=lambda weight: 1.01 * weight
        )
    },
    "proximal-newton": {
        "the weight is 1 % too large": called(
            "pullback.damped_newton_step", weight=lambda weight: 1.01 * weight
        )
    },
    "gaussian-coordinates": DAMPED,
    "pullback-metric": {"the metric is 1 % too large": scaled("pullback.PullbackMetric.matrix")},
    "function-distance": {"the distance is 1 % too large": scaled("pullback.distance")},
    "products": {"the product is 1 % too large": scaled("pullback.PullbackMetric.flat")},
    "bregman-order": {
        "the divergence is 1 % too large": scaled("pullback.metric.Bregman.divergence")
    },
    "bregman-convex": {
        "the divergence is 1 % too large": scaled("pullback.metric.Bregman.divergence")
    },
    "true-fisher": {"the metric is 1 % too large": scaled("pullback.PullbackMetric.matrix")},
    "units": DAMPED,
    "duality": {"the covector is 1 % too large": scaled("pullback.PullbackMetric.flat")},
    "first-order-invariance": PLAIN,
    "affine-invariance": DAMPED,
    "output-layer": DAMPED
    | {
        "check_invariance finds no difference": made(
            "pullback.check_invariance",
            lambda f: lambda *a, **k: dataclasses.replace(f(*a, **k), model=0.0),
        )
    },
}
