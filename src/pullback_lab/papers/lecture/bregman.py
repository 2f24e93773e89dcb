r"""Bregman divergences of a log-partition function \(A\) are KL divergences, with the arguments
reversed:

\[ D_A(z, z') = A(z) - A(z') - \langle\nabla A(z'), z - z'\rangle = \mathrm{KL}(p_{z'} \,\|\, p_z).
\]

**Corrected.** The lecture says that \(D_A\) is KL, where its proximal term is \(\mathrm{KL}(p_u \|
p_z)\): the Hessians on the diagonal agree, the functions do not.

**A remark.** With a convex loss for \(\phi\) the metric matrix is the Gauss-Newton matrix, as the
lecture says. It need not be a metric, which takes a strictly convex \(\phi\): the Hessian of the
cross-entropy of logits has the kernel \((1, \dots, 1)\).
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

import pullback as pb

from .._claim import Budget, Claim, Measured, Role, Row, Verdict, at_least, at_most
from .._figure import COLOURS, open_figure
from .._numbers import distance, generator

A = np.array([0.3, -0.8, 1.1])
B = np.array([-0.6, 0.9, 0.2])


def kl(p: np.ndarray, q: np.ndarray) -> float:
    """KL(p || q) of two vectors of probabilities."""
    return float(np.sum(p * np.log(p / q)))


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """Three classes."""
    bregman = pb.metric.Bregman(jax.nn.logsumexp)
    family = pb.metric.ExponentialFamily(jax.nn.logsumexp)
    categorical = pb.metric.Categorical()

    @jax.jit
    def compute(a, b):
        hessian = jax.hessian(lambda z: categorical.divergence(a, z))(a)
        proximal = [family.divergence(a, b), categorical.divergence(a, b)]
        return bregman.divergence(a, b), proximal, [bregman.matrix(a), family.matrix(a), hessian]

    d, proximal, hessians = compute(jnp.asarray(A), jnp.asarray(B))
    p, q = (np.exp(z) / np.exp(z).sum() for z in (A, B))
    fisher = np.diag(p) - np.outer(p, p)
    gap = max(abs(float(value) - kl(p, q)) for value in proximal)
    shown = picture()
    return Measured(
        (
            at_most(
                "D_A(a, b) = KL(p_a || p_b), in the order of the proximal term: off by",
                abs(float(d) - kl(p, q)),
                1e-14,
            ),
            at_most(
                "D_A(a, b) = KL(p_b || p_a), off by",
                abs(float(d) - kl(q, p)),
                1e-14,
                Role.CORRECTED,
            ),
            at_most(
                "the Hessians agree with the Fisher matrix: largest error",
                max(distance(h, fisher) for h in hessians),
                1e-13,
                Role.CORRECTED,
            ),
            at_most(
                "the library's proximal term, divergence(a, b), is KL(p_a || p_b), off by",
                gap,
                1e-14,
                Role.CONTROL,
            ),
            at_most(
                "one logit: D_φ is the gap between φ and its tangent, and KL of that order: off by",
                shown["off"],
                1e-14,
                Role.CORRECTED,
            ),
        ),
        shown,
    )


def picture() -> dict[str, Any]:
    """φ(z) = log(1 + e^z), its tangent at z' = -1.5, and the gap at z = 2, in three ways."""
    at, z = -1.5, 2.0
    phi = jax.nn.softplus
    grid = np.linspace(-4.0, 4.0, 161)
    slope = float(jax.grad(phi)(at))
    tangent = float(phi(at)) + slope * (grid - at)
    gap = float(phi(z)) - float(phi(at)) - slope * (z - at)
    bregman = pb.metric.Bregman(lambda z: phi(z[0])).divergence(jnp.array([z]), jnp.array([at]))
    p, q = (1 / (1 + np.exp(-x)) for x in (at, z))
    expected = kl(np.array([p, 1 - p]), np.array([q, 1 - q]))
    off = max(abs(float(bregman) - gap), abs(float(bregman) - expected))
    curve = np.asarray(phi(jnp.asarray(grid)))
    return {"grid": grid, "curve": curve, "tangent": tangent, "ends": [at, z, gap], "off": off}


def draw(data: Mapping[str, Any]) -> Any:
    """A convex function, its tangent at z', and at z the gap between the two: the divergence."""
    figure, axes = open_figure(size=(5.4, 3.8))
    at, z, gap = data["ends"]
    phi = lambda x: float(np.interp(x, data["grid"], data["curve"]))
    axes.plot(data["grid"], data["curve"], color=COLOURS[0], label="φ(z) = log(1 + e^z)")
    axes.plot(data["grid"], data["tangent"], "--", color="0.4", label="tangent at z'")
    axes.plot([at, z], [phi(at), phi(z)], "ko", ms=5)
    axes.plot([z, z], [phi(z) - gap, phi(z)], color=COLOURS[1], lw=3, label=f"D(z, z') = {gap:.3f}")
    axes.set(xlabel="z", ylabel="φ", title="A Bregman divergence is the gap above a tangent")
    axes.set_xticks([-4, at, 0, z, 4], ["-4", "z' = -1.5", "0", "z = 2", "4"])
    axes.legend(frameon=False)
    return figure


def run_convex(budget: Budget, key: PRNGKeyArray) -> Measured:
    """The Hessian of the cross-entropy of three logits, and that of a strictly convex function."""
    cross_entropy = lambda z: jax.nn.logsumexp(z) - z[0]
    strict = lambda z: cross_entropy(z) + jnp.sum(z**2) / 2

    @jax.jit
    def look(z):
        convex = pb.metric.Bregman(cross_entropy)
        h = jax.hessian(cross_entropy)(z)
        shifted = convex.divergence(z + 1.0, z)
        return convex.matrix(z), h, pb.metric.Bregman(strict).matrix(z), shifted

    @jax.jit
    def compare(a, b):
        diagonal = jax.hessian(lambda u: pb.metric.Bregman(strict).divergence(u, b))(b)
        return (
            diagonal,
            jax.hessian(strict)(b),
            pb.metric.Bregman(lambda z: jnp.sum(z**2) / 2).divergence(a, b),
        )

    matrix, hessian, strict_matrix, shifted = look(jnp.asarray(A))
    values = np.linalg.eigvalsh(np.asarray(matrix))
    other = np.linalg.eigvalsh(np.asarray(strict_matrix))
    hessians = []
    euclidean = []
    for a, b in generator(key).standard_normal((5 * budget.seeds, 2, 3)):
        diagonal, direct, half = compare(jnp.asarray(a), jnp.asarray(b))
        hessians.append(distance(diagonal, direct))
        euclidean.append(abs(float(half) - np.sum((a - b) ** 2) / 2))
    equal = at_most(
        "φ = L, the cross-entropy of logits: G_z = H_z", distance(matrix, hessian), 1e-13
    )
    rows = _convex_rows(values, other, float(shifted), hessians, euclidean)
    return Measured((equal, *rows))


def _convex_rows(
    values: np.ndarray,
    other: np.ndarray,
    shifted: float,
    hessians: list[float],
    euclidean: list[float],
) -> tuple[Row, ...]:
    """The measured numbers with their bounds."""
    return (
        at_most(
            "the Hessian of D_φ on the diagonal is that of φ, strictly convex: largest error",
            max(hessians),
            1e-13,
        ),
        at_most(
            "that G_z is singular: its smallest eigenvalue relative to the largest",
            abs(values[0] / values[-1]),
            1e-10,
            Role.CONTROL,
        ),
        at_least(
            "φ strictly convex: smallest eigenvalue relative to the largest",
            other[0] / other[-1],
            1e-3,
            Role.CONTROL,
        ),
        at_most(
            "the kernel is the common shift: D_φ(z + 1, z)",
            abs(shifted),
            1e-14,
            Role.CONTROL,
        ),
        at_least(
            "and nothing else: second eigenvalue relative to the largest",
            values[1] / values[-1],
            0.1,
            Role.CONTROL,
        ),
        at_most("φ = |z|²/2 gives |z - z'|²/2: largest error", max(euclidean), 1e-13, Role.CONTROL),
    )


CLAIMS = (
    Claim(
        name="bregman-order",
        source="lecture",
        place="Bregman divergence, examples",
        quotation="φ is the log partition function ⇒ D_φ is KL divergence",
        statement=(
            "If z are the natural parameters of an exponential family and φ its log-partition "
            "function, then D_φ is the KL divergence."
        ),
        verdict=Verdict.CORRECTED,
        stands=True,
        run=run,
        correction=(
            "With the arguments reversed, D_φ(z, z') = KL(p_z' || p_z), where the lecture's "
            "proximal term is KL(p_u || p_z). The Hessians on the diagonal, and so the metrics, "
            "are the same."
        ),
        draw=draw,
    ),
    Claim(
        name="bregman-convex",
        source="lecture",
        place="Bregman divergence, its Hessian",
        quotation=(
            "If the output loss L is convex, we can choose φ = L. Then G_z = H_z, and therefore "
            "the GN Hessian equals the metric matrix."
        ),
        statement=(
            "If the loss is convex in the outputs we can choose φ = L; then G_z = H_z, and the "
            "Gauss-Newton Hessian is the metric matrix."
        ),
        verdict=Verdict.HOLDS,
        run=run_convex,
        remark=(
            "The matrix need not be that of a metric, which takes a strictly convex φ. The "
            "cross-entropy of logits is convex only: its Hessian has the kernel (1, ..., 1)."
        ),
    ),
)
