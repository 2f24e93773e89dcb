r"""The KL divergence as a dissimilarity, \(D_{\mathrm{KL}}(q \,\|\, p) = \mathbb E_{x\sim q}[\log
q(x) - \log p(x)]\): what it has of a distance and what it lacks.

It is never negative, and zero for equal distributions only: Pinsker's inequality, \(D \ge
2\,\mathrm{TV}^2\), bounds it from below by how far the two are apart. It is neither symmetric nor
does it satisfy the triangle inequality. In bits it is what is wasted if data from \(q\) are encoded
with a code made for \(p\): for probabilities that are powers of ½ the best code (Huffman) has words
of \(-\log_2 p\) bits, and the waste is exactly \(D/\log 2\). The formula mentions no parameters:
four coordinate systems of the Gaussians give one number.
"""

import heapq
import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

import pullback as pb

from .._claim import Budget, Claim, Measured, Role, Verdict, at_least, at_most
from .._numbers import generator
from .gaussian import SYSTEMS

CLASSES = 6
PAIRS = 200
DYADIC = (1, 2, 3, 4, 5, 5)
"""Word lengths, in bits, of a code that is complete: the sum of 2^-length is 1."""


def kl(q: np.ndarray, p: np.ndarray) -> np.ndarray:
    """D(q || p) by its definition, along the last axis."""
    return np.sum(q * (np.log(q) - np.log(p)), axis=-1)


def word_lengths(weights: Sequence[float]) -> np.ndarray:
    """The lengths of the words of Huffman's code."""
    order = itertools.count()
    heap: list[tuple[float, int, tuple[int, ...]]] = [
        (weight, next(order), (symbol,)) for symbol, weight in enumerate(weights)
    ]
    heapq.heapify(heap)
    lengths = np.zeros(len(weights), int)
    while len(heap) > 1:
        first, _, left = heapq.heappop(heap)
        second, _, right = heapq.heappop(heap)
        for symbol in left + right:
            lengths[symbol] += 1
        heapq.heappush(heap, (first + second, next(order), left + right))
    return lengths


def wasted(rng: np.random.Generator) -> float:
    """The error of D/log 2 as the bits wasted per symbol, for two random dyadic distributions."""
    q, p = (2.0 ** -rng.permutation(DYADIC) for _ in range(2))
    waste = float(q @ word_lengths(list(p)) - q @ word_lengths(list(q)))
    divergence = pb.metric.Categorical().divergence(jnp.log(q), jnp.log(p))
    return abs(float(divergence) / np.log(2) - waste)


def coordinates(points: Float[Array, "n 2"], others: Float[Array, "n 2"]) -> float:
    """The largest relative difference of the divergences of Gaussians, given by (μ, log σ), from
    the formula in μ and σ; three ways to hand them to the library.
    """
    m, s, n, t = (np.asarray(x) for x in (*points.T, *others.T))
    ratio = np.exp(2 * (s - t))
    expected = t - s + (ratio + (m - n) ** 2 * np.exp(-2 * t) - 1) / 2
    worst = 0.0
    for system in SYSTEMS.values():
        if system.metric.has_divergence:
            between = lambda a, b, one=system: one.metric.divergence(
                one.outputs(one.write(a)), one.outputs(one.write(b))
            )
            found = np.asarray(jax.jit(jax.vmap(between))(points, others))
            worst = max(worst, float(np.max(np.abs(found / expected - 1))))
    return worst


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """Random distributions of six classes, codes, and Gaussians in several coordinates."""
    rng = generator(key)
    size = PAIRS * budget.seeds
    a = jnp.asarray(2 * rng.standard_normal((size, CLASSES)))
    # From nearly equal distributions to very different ones.
    apart = 10.0 ** rng.uniform(-3, 0.5, (size, 1))
    b = a + jnp.asarray(apart * rng.standard_normal((size, CLASSES)))
    half = (a + b) / 2
    divergence = jax.jit(jax.vmap(pb.metric.Categorical().divergence))
    pairs = ((a, b), (b, a), (a, half), (half, b))
    ab, ba, first, second = (np.asarray(divergence(*pair)) for pair in pairs)
    p, q = (np.exp(np.asarray(z)) for z in (a, b))
    p, q = (x / x.sum(axis=1, keepdims=True) for x in (p, q))
    variation = np.abs(p - q).sum(axis=1) / 2
    shifted = np.abs(np.asarray(divergence(a, a + jnp.asarray(rng.standard_normal((size, 1))))))
    gaussians = [
        jnp.asarray(np.stack([rng.standard_normal(20), rng.uniform(-1, 1, 20)], axis=1))
        for _ in range(2)
    ]
    rows = (
        at_least("least divergence of random distributions", ab.min(), 0.0),
        at_most("equal distributions, logits shifted: largest", shifted.max(), 1e-14),
        at_least(
            "unequal ones: the divergence over 2 TV² (Pinsker), smallest",
            np.min(ab / (2 * variation**2)),
            1.0,
        ),
        at_least(
            "not symmetric: relative difference of the two orders, largest",
            np.max(np.abs(ab - ba) / np.maximum(ab, ba)),
            0.1,
        ),
        at_least(
            "no triangle inequality, c half way: D(a, b) - D(a, c) - D(c, b), largest",
            np.max(ab - first - second),
            0.1,
        ),
        at_most(
            "bits wasted by a code for p on data from q, less D/log 2: largest error",
            max(wasted(rng) for _ in range(20 * budget.seeds)),
            1e-14,
        ),
        at_most(
            "intrinsic: Gaussians in three coordinate systems, relative error",
            coordinates(*gaussians),
            1e-11,
        ),
        at_most(
            "divergence(a, b) is E over a of log a - log b: largest error",
            np.max(np.abs(ab - kl(p, q))),
            1e-13,
            Role.CONTROL,
        ),
    )
    return Measured(rows)


CLAIM = Claim(
    name="kl-divergence",
    source="lecture",
    place="KL divergence",
    quotation=(
        "Doesn't satisfy some of the axioms of distance metrics (symmetry, triangle inequality) "
        "... Nonnegative, equals 0 iff p = q ... the number of bits wasted if you encode data from "
        "q using a code designed for p"
    ),
    statement=(
        "The KL divergence is not negative, and zero for equal distributions only; it is not "
        "symmetric and violates the triangle inequality. In bits it is what a code for p wastes "
        "on data from q. It does not depend on the parameters."
    ),
    verdict=Verdict.HOLDS,
    run=run,
)
