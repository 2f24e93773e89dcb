r"""Any model with at least as many parameters as samples: while \(J = \partial s/\partial w\) has
full row rank, the natural flow moves the logits by \(\dot s_i = y_i/\varphi(y_i s_i)\), whatever
the model, so that \(s_i(t) = y_i\log(e^{t+c_i} - 1)\).

Tanh networks are followed by the library and compared with the closed form. The condition cannot be
dropped: a network with fewer parameters than samples, \(P < N\), is off the law from the start.
"""

import itertools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

import pullback as pb

from .._claim import Budget, Claim, Measured, Role, Verdict, at_least, at_most, equals
from .._figure import COLOURS, open_figure
from .._numbers import distance, generator
from ._logistic import batch, interpolating_logits

TIMES = np.linspace(0.0, 12.0, 25)


def network(params: list, x: Float[Array, "N d"]) -> Float[Array, " N"]:
    """A tanh network with a linear last layer without bias."""
    for w, b in params[:-1]:
        x = jnp.tanh(x @ w + jnp.broadcast_to(b, (x.shape[0], b.shape[0])))
    return x @ params[-1]


def weights(rng: np.random.Generator, sizes: tuple[int, ...]) -> list:
    """Random parameters of `network`."""
    pairs = itertools.pairwise(sizes)
    hidden = [
        (
            jnp.asarray(rng.standard_normal((m, n)) / np.sqrt(m)),
            jnp.asarray(0.5 * rng.standard_normal(n)),
        )
        for m, n in pairs
    ]
    return [*hidden, jnp.asarray(rng.standard_normal(sizes[-1]) / np.sqrt(sizes[-1]))]


NETWORK = pb.Composite(network, metric=pb.metric.Bernoulli())


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """The flows to t = 12."""
    rng = generator(key)
    shapes = {
        "one hidden layer, P = 40": (3, 8),
        **({"two hidden layers, P = 116": (3, 8, 8)} if budget.full else {}),
    }
    rows = []
    curves = {}
    for name, sizes in shapes.items():
        error = []
        slope = []
        lost = []
        for _ in range(budget.seeds):
            x = rng.standard_normal((5, 3))
            y = rng.permutation([1.0, -1.0, 1.0, -1.0, 1.0])
            params = weights(rng, sizes)
            s0 = np.asarray(network(params, jnp.asarray(x)))
            sol = pb.flow(
                NETWORK, params, batch(x, y), t1=TIMES[-1], ts=TIMES, rtol=1e-9, atol=1e-11
            )
            s = np.asarray(jax.jit(jax.vmap(network, in_axes=(0, None)))(sol.saved, jnp.asarray(x)))
            error.append(distance(s, interpolating_logits(s0, y, TIMES)))
            slope.append(np.abs((s[-1] - s[-2]) / (TIMES[-1] - TIMES[-2]) - y).max())
            lost.append(5 - int(sol.inspection.rank))
            curves = {"margins": s * y, "offsets": np.logaddexp(0.0, y * s0)}
        rows += [
            at_most(f"{name}: logits against (68), t ≤ 12", max(error), 1e-6),
            at_most(f"{name}: slope at the end against y", max(slope), 1e-4),
            equals(f"{name}: rows of J lost at the end", max(lost), 0, Role.CONTROL),
        ]
    rows.append(
        at_least(
            "control, P = 5 < N = 9: off the law at the start by",
            _too_small(rng),
            0.1,
            Role.CONTROL,
        )
    )
    return Measured(tuple(rows), {"times": TIMES, **curves})


def _too_small(rng: np.random.Generator) -> float:
    x = rng.standard_normal((9, 3))
    y = rng.choice([-1.0, 1.0], 9)
    params = weights(rng, (3, 1))
    ng = pb.natural_gradient(NETWORK, params, batch(x, y))
    s = np.asarray(network(params, jnp.asarray(x)))
    return distance(-np.asarray(ng.pushforward), y * (1 + np.exp(-y * s)))


def draw(data: Mapping[str, Any]) -> Any:
    """The margins over time: each tends to t + c."""
    fig, axes = open_figure()
    t = np.asarray(data["times"])
    margins = np.asarray(data["margins"])
    for i, c in enumerate(data["offsets"]):
        colour = COLOURS[i % len(COLOURS)]
        axes.plot(t, margins[:, i], color=colour, lw=1.5)
        axes.plot(t, t + c, color=colour, lw=0.8, ls=":")
    axes.plot([], [], color="k", lw=1.5, label=r"$y_i s_i(t)$")
    axes.plot([], [], color="k", lw=0.8, ls=":", label=r"$t + \log(1 + e^{y_i s_i(0)})$")
    axes.set(xlabel="t", ylabel="margin", title="natural flow of a tanh network")
    axes.legend(frameon=False)
    return fig


CLAIM = Claim(
    name="depth-theorem-4",
    source="depth",
    place="Theorem 4 and appendix C.3, eqs. (63) to (73)",
    quotation="grows asymptotically linearly with direction vector y",
    statement=(
        "In any model with P ≥ N parameters whose Jacobian keeps full rank, the logits of the "
        "natural flow grow asymptotically linearly, in the direction of the labels."
    ),
    verdict=Verdict.HOLDS,
    run=run,
    draw=draw,
)
