r"""The distance of two networks as functions, \(\rho_{\text{pull}}(w, w') = \mathbb E_x\,\rho(f(w,
x), f(w', x))\), is \(\tfrac12(w - w')^\top G_w(w - w')\) up to third order; the distance of their
weights says little. With its hidden units in another order, and with the signs of some of them
changed on both sides, a network has other weights and is the same function.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

import pullback as pb
from pullback import testing

from .._claim import Budget, Claim, Measured, Role, Row, Verdict, at_least, at_most
from .._figure import open_figure
from .._numbers import generator


def twin(params: dict, rng: np.random.Generator) -> dict:
    """The same network with its hidden units in another order, none in its old place, and the signs
    of half of them changed: tanh is odd.
    """
    cycle = rng.permutation(params["b"].size)
    order = np.empty_like(cycle)
    order[cycle] = np.roll(cycle, 1)
    sign = jnp.asarray(rng.permutation(np.resize([1.0, -1.0], cycle.size)))
    return {
        "w": params["w"][:, order] * sign[None, :],
        "b": params["b"][order] * sign,
        "v": params["v"][order] * sign[:, None],
    }


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
    between = lambda s: jax.tree.map(lambda a, b: (1 - s) * a + s * b, model.params, other)
    steps = 0.1 * 0.5 ** np.arange(5)
    near = pb.distance(problem, model.params, [between(float(s)) for s in steps], (x,))
    errors = np.abs(np.asarray(near.function) - np.asarray(near.quadratic))
    slopes = np.diff(np.log(errors)) / np.log(0.5)
    p, q = (np.asarray(jax.nn.softmax(model.function(w, x))) for w in (between(1.0), model.params))
    mean = float(np.mean(np.sum(p * np.log(p / q), axis=1)))
    same = twin(model.params, generator(key))
    to_twin = pb.distance(problem, model.params, pb.line(model.params, same, 41), (x,))
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
        *_twin_rows(to_twin, near),
        at_least(
            "far away, on the second half of the line, the quadratic estimate is off by, largest",
            np.max(np.abs(np.asarray(curve.quadratic)[20:] / np.asarray(curve.function)[20:] - 1)),
            0.05,
            Role.CONTROL,
        ),
    )
    names = ("function", "quadratic", "parameters")
    data = {name: np.asarray(getattr(curve, name)) for name in names}
    data |= {f"twin {name}": np.asarray(getattr(to_twin, name)) for name in names}
    return Measured(rows, {"positions": np.linspace(0, 1, 41), **data})


def _twin_rows(curve: pb.Distance, near: pb.Distance) -> tuple[Row, ...]:
    """The rows on the network with its hidden units permuted: a function at distance zero, at
    weights much farther away than other functions are.
    """
    weights = np.asarray(curve.parameters)[-1]
    return (
        at_most(
            "hidden units permuted, signs changed: distance of the functions",
            abs(float(curve.function[-1])),
            1e-14,
        ),
        at_least(
            "and of the weights, in that of a network whose function is another",
            weights / float(near.parameters[2]),
            5.0,
        ),
        at_least(
            "the function of that network is at a distance of",
            float(near.function[2]),
            1e-5,
            Role.CONTROL,
        ),
        at_least(
            "half way to the permuted network the function is another: distance",
            float(curve.function[20]),
            1e-3,
            Role.CONTROL,
        ),
    )


def draw(data: Mapping[str, Any]) -> Any:
    """Along a line from one network to another, left, and to the same network with its hidden units
    permuted, right: distance as functions, its quadratic estimate, distance of the weights. Right,
    the distance as functions rises and returns to zero.
    """
    figure, axes = open_figure(columns=2, size=(5.2, 3.8))
    titles = {"": "to another network", "twin ": "to itself, hidden units permuted"}
    for ax, (prefix, title) in zip(axes, titles.items(), strict=True):
        parts = (data[prefix + name] for name in ("function", "quadratic", "parameters"))
        pb.plot.distances(data["positions"], pb.Distance(*parts), axes=ax)
        ax.set(title=title, ylim=(1e-4, 1e2))
    return figure


CLAIM = Claim(
    name="function-distance",
    source="lecture",
    place="Function space distance",
    quotation="Euclidean distance between weights isn't very meaningful",
    statement=(
        "The distance of networks as functions is the mean divergence of their outputs; its "
        "second-order expansion is the pullback metric. The distance of their weights says "
        "little: networks far apart can be the same function."
    ),
    verdict=Verdict.HOLDS,
    run=run,
    draw=draw,
)
