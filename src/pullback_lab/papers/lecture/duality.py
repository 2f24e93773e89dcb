r"""Vectors are pushed forward, covectors are pulled back, and a metric turns one into the other:

\[ \langle J^\top c, v\rangle = \langle c, Jv\rangle, \qquad \langle u, v\rangle_G = \langle Ju,
Jv\rangle_M, \qquad (v^\flat)^\sharp = v \text{ up to the kernel of } G, \qquad (\mathrm dL)^\sharp
= \tilde\nabla L. \]

The pictures of the lecture, from numbers: a covector as the contours of a linear function, which a
vector crosses as many times as the pairing says (here twice); and a covector on the outputs pulled
back, \(J^\top c\), whose contours on the parameters are the preimages of those on the outputs, so
that \(v\) crosses as many as \(Jv\).
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

import pullback as pb

from .._claim import Budget, Claim, Measured, Role, Verdict, at_least, at_most
from .._figure import COLOURS, open_figure
from .._numbers import distance, generator
from .invariance import BATCH, INPUTS, PROBLEM, network

COVECTOR = np.array([1.2, 0.4])
VECTOR = np.array([1.5, 0.5])
BENT = np.array([0.6, 0.4])
"""Where the covector is pulled back."""


def bent(x: Float[Array, " 2"]) -> Float[Array, " 2"]:
    """A map of the plane to the plane."""
    return jnp.stack([x[0] + 0.5 * x[1] ** 2, x[1] - 0.4 * jnp.sin(2 * x[0])])


def pictures() -> dict[str, Any]:
    """A covector on a vector, and both sides of a covector that is pulled back."""
    at = jnp.asarray(BENT)
    metric = pb.pullback(pb.Composite(bent, loss=jnp.sum), at)
    v = jnp.asarray([0.5, 0.6])
    pulled = metric.pull(jnp.asarray(COVECTOR))
    pushed = metric.pushforward(v)
    typed = pb.CotangentVector(pulled) @ pb.TangentVector(v)
    return {
        "pairing": float(
            pb.CotangentVector(jnp.asarray(COVECTOR)) @ pb.TangentVector(jnp.asarray(VECTOR))
        ),
        "typed": float(typed),
        "at": BENT,
        "outputs": np.asarray(bent(at)),
        "vector": np.asarray(v),
        "pushed": np.asarray(pushed),
        "pulled": np.asarray(pulled),
    }


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """A network, random vectors and covectors."""
    rng = generator(key)
    params = jnp.asarray(rng.standard_normal(8))
    j = np.asarray(jax.jacfwd(lambda p: network(p, INPUTS))(params))

    rounding = np.finfo(float).eps * np.linalg.cond(j) ** 2

    @jax.jit
    def look(u, v, c):
        metric = pb.pullback(PROBLEM, params, BATCH)
        flat = metric.flat(v)
        return metric.pushforward(v), metric.pull(c), metric.inner(u, v), flat, metric.sharp(flat)

    found: dict[str, list[float]] = {name: [] for name in ("adjoint", "inner", "musical", "plain")}
    for _ in range(5 * budget.seeds):
        u = rng.standard_normal(8)
        v = rng.standard_normal(8)
        c = rng.standard_normal(10)
        pushed, pulled, inner, flat, back = (
            np.asarray(x) for x in look(*map(jnp.asarray, (u, v, c)))
        )
        size = np.linalg.norm(j @ u) * np.linalg.norm(j @ v) / 10
        found["adjoint"].append(
            float(abs(pulled @ v - c @ pushed) / (np.linalg.norm(c) * np.linalg.norm(pushed)))
        )
        found["inner"].append(float(abs(inner - (j @ u) @ (j @ v) / 10) / size))
        found["musical"].append(distance(back, v) / rounding)
        found["plain"].append(distance(flat, v))
    ng = pb.natural_gradient(PROBLEM, params, BATCH)
    sharp = jax.jit(lambda g: pb.pullback(PROBLEM, params, BATCH).sharp(g))
    gradient = distance(sharp(ng.covector), ng.vector) / rounding
    shown = pictures()
    on_outputs = float(COVECTOR @ shown["pushed"])
    return Measured(
        (
            at_most(
                "pull a covector back or push a vector forward: the pairing is the same, largest "
                "error",
                max(found["adjoint"]),
                1e-12,
            ),
            at_most(
                "the inner product pulled back is that of the pushforwards",
                max(found["inner"]),
                1e-13,
            ),
            at_most(
                "vector to covector to vector: error over eps cond(G)", max(found["musical"]), 10
            ),
            at_most(
                "the natural gradient is the differential made a vector: error over eps cond(G)",
                gradient,
                10,
            ),
            at_most(
                "the drawn covector evaluates to 2 on the drawn vector: off by",
                abs(shown["pairing"] - 2),
                1e-14,
                Role.CONTROL,
            ),
            at_most(
                "CotangentVector(pulled) @ TangentVector(v) is c(Jv): off by",
                abs(shown["typed"] - on_outputs),
                1e-14,
            ),
            at_least(
                "a vector and its covector are not the same numbers: smallest difference",
                min(found["plain"]),
                0.1,
                Role.CONTROL,
            ),
        ),
        shown,
    )


def draw(data: Mapping[str, Any]) -> Any:
    """Left, a vector that crosses two contours of a covector: it evaluates to 2. Right, a covector
    on the outputs as its contours; middle, its pullback on the parameters: the vector and its
    pushforward cross equally many.
    """
    figure, axes = open_figure(columns=3, size=(4.0, 3.9))
    origin = np.zeros(2)
    panels = (
        (axes[0], origin, COVECTOR, VECTOR, "a covector on a vector"),
        (axes[1], data["at"], data["pulled"], data["vector"], "parameters: $J^T c$"),
        (axes[2], data["outputs"], COVECTOR, data["pushed"], "outputs: $c$"),
    )
    for ax, at, covector, vector, title in panels:
        value = float(np.dot(covector, vector))
        grid = np.stack(np.meshgrid(*(at[i] + np.linspace(-1, 2.2, 60) for i in range(2))), axis=-1)
        step = 1.0 if ax is axes[0] else 0.25
        levels = step * np.arange(-12, 13)
        ax.contour(
            *grid.transpose(2, 0, 1),
            (grid - at) @ covector,
            levels=levels,
            colors=COLOURS[0],
            linewidths=1,
        )
        ax.quiver(
            *at,
            *vector,
            color=COLOURS[1],
            angles="xy",
            scale_units="xy",
            scale=1,
            width=0.014,
            zorder=3,
        )
        ax.plot(*at, "ko", ms=4)
        ax.set(
            xlim=(at[0] - 0.5, at[0] + 1.8),
            ylim=(at[1] - 0.8, at[1] + 1.5),
            title=f"{title}, contours every {step:g}\nit evaluates to {value:.3g}",
            xlabel="first coordinate",
            ylabel="second coordinate",
            aspect="equal",
        )
    return figure


CLAIM = Claim(
    name="duality",
    source="lecture",
    place="Vectors and covectors; pulling back a metric",
    quotation="vectors can be pushed forward, and covectors can be pulled back",
    statement=(
        "Vectors can be pushed forward and covectors pulled back; pushing two vectors forward "
        "and taking their inner product is taking it in the metric pulled back. The natural "
        "gradient is the differential, a covector, made a vector by the metric."
    ),
    verdict=Verdict.HOLDS,
    run=run,
    draw=draw,
)
