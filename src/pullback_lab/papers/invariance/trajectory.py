r"""Section 4. Directions are invariant, steps are not. For \(\psi = \varphi \circ f\) a step of
size \(h\) leads to points of the model that differ by \(O(h^2)\): the curvature of \(f\) shows. At
a fixed time, \(n\) steps of \(T/n\), the ends differ by \(O(1/n)\). This has nothing to do with
overparametrisation. The plain gradient, which is not invariant, differs by \(O(h)\).
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

import pullback as pb
from pullback.plot import orders

from .._claim import Budget, Claim, Measured, Role, Verdict, at_least, at_most
from .._numbers import generator
from ._curved import INNER, METRIC, loss, outer, phi, point


def plain(problem: pb.Composite, params: Any, batch: Any) -> Any:
    """The gradient, taken for a vector."""
    loss = problem.loss
    assert loss is not None
    return jax.grad(lambda p: loss(problem.model(p)))(params)


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """A model with more parameters than dimensions, one with as many, and the plain gradient."""
    rng = generator(key)
    warp = jax.random.split(key)[0]
    over = jnp.asarray(point(rng))
    chart = jnp.asarray(rng.standard_normal(INNER))
    wide = pb.Composite(phi, loss=loss, metric=METRIC)
    narrow = pb.Composite(outer, loss=loss, metric=METRIC)
    f = pb.random_reparametrisation(over, warp)
    g = pb.random_reparametrisation(chart, warp)
    found = {
        "overparametrised": pb.check_invariance(wide, over, reparametrisation=f),
        "not overparametrised": pb.check_invariance(narrow, chart, reparametrisation=g),
        "plain gradient": pb.check_invariance(
            wide, over, reparametrisation=f, method=plain, counts=()
        ),
    }
    first, second, control = found.values()
    rows = (
        at_least(
            "overparametrised: the largest step leads to points that differ by",
            first.discrepancies[0],
            1e-8,
        ),
        at_most(
            "overparametrised: order in the step of that difference, |order - 2|",
            abs(first.order - 2),
            0.1,
        ),
        at_most(
            "overparametrised: order in 1/n of the ends at a fixed time, |order - 1|",
            abs(first.trajectory_order - 1),
            0.15,
        ),
        at_least(
            "not overparametrised: the largest step leads to points that differ by",
            second.discrepancies[0],
            1e-8,
        ),
        at_most("not overparametrised: order in the step, |order - 2|", abs(second.order - 2), 0.1),
        at_most(
            "directions agree: largest difference, both models",
            max(first.model, second.model),
            1e-11,
            Role.CONTROL,
        ),
        at_most(
            "the plain gradient: order in the step, |order - 1|",
            abs(control.order - 1),
            0.1,
            Role.CONTROL,
        ),
    )
    return Measured(
        rows, {name: np.stack([one.steps, one.discrepancies]) for name, one in found.items()}
    )


def draw(data: Mapping[str, Any]) -> Any:
    """Discrepancy of one step against its size, both logarithmic: slope 2 for the natural gradient
    of both models, slope 1 for the plain gradient.
    """
    figure, axes = orders({name: (curve[0], curve[1]) for name, curve in data.items()})
    axes.set_title("one step in two parametrisations")
    return figure


CLAIM = Claim(
    name="trajectory",
    source="invariance",
    place="Section 4, invariance of the trajectory",
    quotation=(
        "updating the parameters by a finite amount will in general result in different locations "
        "on the model"
    ),
    statement=(
        "An infinitesimal step is invariant on the model, a finite one is not: the trajectory "
        "depends on the parametrisation, and not only for overparametrised models."
    ),
    verdict=Verdict.HOLDS,
    run=run,
    draw=draw,
)
