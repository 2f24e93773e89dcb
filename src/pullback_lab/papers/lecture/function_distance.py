r"""The distance of two networks as functions, \(\rho_{\text{pull}}(w, w') = \mathbb E_x\,\rho(f(w,
x), f(w', x))\), is \(\tfrac12(w - w')^\top G_w(w - w')\) up to third order; the distance of their
weights says little.
"""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

import pullback as pb
from pullback import testing

from .._claim import Budget, Claim, Measured, Role, Verdict, at_least, at_most
from .._numbers import distance


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """A softmax network, along a line to another, and under a permutation of its hidden units."""
    keys = jax.random.split(key, 3)
    model = testing.tanh_mlp(2, 3, 8, keys[0])
    leaves = jax.tree.leaves(model.params)
    noise = [
        jax.random.normal(jax.random.fold_in(keys[1], i), leaf.shape)
        for i, leaf in enumerate(leaves)
    ]
    other = jax.tree.unflatten(
        jax.tree.structure(model.params), [a + b for a, b in zip(leaves, noise, strict=True)]
    )
    problem = pb.Composite(model.function, metric=pb.metric.Categorical())
    x = jax.random.normal(keys[2], (50, 2))
    curve = pb.distance(problem, model.params, pb.line(model.params, other, 41), (x,))
    steps = 0.1 * 0.5 ** np.arange(5)
    between = lambda s: jax.tree.map(lambda a, b: (1 - s) * a + s * b, model.params, other)
    near = pb.distance(problem, model.params, [between(float(s)) for s in steps], (x,))
    errors = np.abs(np.asarray(near.function) - np.asarray(near.quadratic))
    slopes = np.diff(np.log(errors)) / np.log(0.5)
    p, q = (np.asarray(jax.nn.softmax(model.function(w, x))) for w in (between(1.0), model.params))
    mean = float(np.mean(np.sum(p * np.log(p / q), axis=1)))
    rows = (
        at_most(
            "order of distance minus quadratic estimate, |order - 3|",
            abs(2 * slopes[-1] - slopes[-2] - 3),
            0.15,
        ),
        at_most(
            "the distance is the mean of KL over the inputs: error",
            abs(float(np.asarray(curve.function)[-1]) / mean - 1),
            1e-12,
        ),
        at_least(
            "far away the quadratic estimate is off by",
            distance(np.asarray(curve.quadratic)[-1:], np.asarray(curve.function)[-1:]),
            0.05,
            Role.CONTROL,
        ),
    )
    data = {
        name: np.asarray(getattr(curve, name)) for name in ("function", "quadratic", "parameters")
    }
    return Measured(rows, {"positions": np.linspace(0, 1, 41), **data})


def draw(data: Mapping[str, Any]) -> Any:
    """Along a line from one network to another: their distance as functions, its quadratic
    estimate, and the distance of the weights.
    """
    curve = pb.Distance(data["function"], data["quadratic"], data["parameters"])
    return pb.plot.distances(data["positions"], curve)[0]


CLAIM = Claim(
    name="function-distance",
    source="lecture",
    place="Function space distance",
    quotation="Euclidean distance between weights isn't very meaningful",
    statement=(
        "The distance of networks as functions is the mean divergence of their outputs; its "
        "second-order expansion is the pullback metric."
    ),
    verdict=Verdict.HOLDS,
    run=run,
    draw=draw,
)
