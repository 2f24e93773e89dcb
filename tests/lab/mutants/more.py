"""Mutants that need functions and classes of their own, of claims of several sources."""

import jax.numpy as jnp

import pullback as pb
from pullback_lab.papers.depth import _figure_flows
from pullback_lab.papers.ours import singularities

from ._tools import PAPERS, Mutant, instead, scaled


def without_gauge(*args, inverse=None, original=pb.natural_gradient, **kwargs):
    """The natural gradient with the Moore-Penrose inverse, whatever inverse is asked for."""
    return original(*args, **kwargs)


def reversed_divergence(self, u, z, original=pb.metric.Categorical.divergence):
    """KL with its arguments in the other order."""
    return original(self, z, u)


def larger_matrix(self, original=pb.PullbackMetric.matrix):
    """The metric, 1 % too large."""
    return 1.01 * original(self)


def permuted_only_once(params, rng):
    """The hidden units permuted on the way in, and not on the way out."""
    order = rng.permutation(params["b"].size)
    return {"w": params["w"][:, order], "b": params["b"][order], "v": params["v"]}


class DoubledDivergence(pb.metric.Divergence):
    """The metric of twice a divergence."""

    def matrix(self, z):
        return 2 * super().matrix(z)


class HalfMirror(pb.BregmanMirror):
    """Half a step in the mirror."""

    def move(self, params, covector):
        return super().move(params, covector / 2)


EUCLIDEAN_FLOW = _figure_flows.euclidean_flow


def shallow(task, weights, *rest, **options):
    """The Euclidean flow of the first layer alone."""
    return EUCLIDEAN_FLOW(task, weights[:1], *rest, **options)


PAIRS: dict[str, tuple[str, Mutant]] = {
    "depth-margins": (
        "the networks have one layer",
        instead(PAPERS + "depth.margins.euclidean_flow", shallow),
    ),
    "depth-low-rank": (
        "the least nuclear norm is that of the truth",
        instead(PAPERS + "depth.low_rank.minimum_nuclear_norm", lambda target, mask: (target, 0.0)),
    ),
    "depth-noisy-labels": (
        "the interpolant is 1 % too long",
        scaled(PAPERS + "depth.noisy_labels.l2_interpolant"),
    ),
    "one-manifold": (
        "the natural gradient of diagonal networks leaves the row space by 0.001",
        scaled("pullback.linear.Diagonal.natural_gradient", 1.0, 1e-3),
    ),
    "generalised-inverse": (
        "the gauge is ignored",
        instead("pullback.natural_gradient", without_gauge),
    ),
    "trust-region": (
        "damped Newton leaves the Hessian out",
        instead("pullback.damped_newton_step", pb.linearised_proximal_step),
    ),
    "kl-divergence": (
        "the arguments are reversed",
        instead("pullback.metric.Categorical.divergence", reversed_divergence),
    ),
    "fisher-derivation": (
        "the targets are those of the data",
        instead(
            "pullback.metric.SampledFisher",
            lambda family, key, draws: pb.metric.EmpiricalFisher(family),
        ),
    ),
    "dimensions": (
        "units change by the root of their factor",
        instead("pullback.Units", lambda scale, units=pb.Units: units(jnp.sqrt(scale))),
    ),
    "singularities": (
        "the branches of the tacnode cross",
        instead(PAPERS + "ours.singularities.tacnode", singularities.crossing),
    ),
    "true-fisher": (
        "the metric is 1 % too large",
        instead("pullback.PullbackMetric.matrix", larger_matrix),
    ),
    "function-distance": (
        "hidden units are permuted on the way in only",
        instead(PAPERS + "lecture.function_distance.twin", permuted_only_once),
    ),
    "products": (
        "the metric of a divergence is twice as large",
        instead("pullback.metric.Divergence", DoubledDivergence),
    ),
    "mirror-descent": (
        "half a step in the mirror",
        instead(
            PAPERS + "lecture.mirror.MIRRORS",
            (
                pb.KLMirror(),
                pb.ReverseKLMirror(),
                pb.EuclideanMirror(),
                HalfMirror(lambda u: jnp.sum(u * jnp.log(u) - u)),
            ),
        ),
    ),
    "constraints": (
        "the exact penalty comes to rest outside",
        instead(PAPERS + "invariance.constraints.with_kink", lambda strength: jnp.full(301, -0.1)),
    ),
    "proposition-1": (
        "examine calls every point improper",
        instead("pullback.Examination.proper", False),
    ),
    "figure-eight-numbers": (
        "the Gram matrix is 1 % too large",
        instead("pullback.PullbackMetric.matrix", larger_matrix),
    ),
    "duality": (
        "the pairing is 1 % too large",
        instead(
            "pullback.CotangentVector.__matmul__",
            lambda self, v, original=pb.CotangentVector.__matmul__: 1.01 * original(self, v),
        ),
    ),
}
MORE: dict[str, dict[str, Mutant]] = {name: {what: how} for name, (what, how) in PAIRS.items()}
