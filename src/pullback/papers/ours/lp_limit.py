r"""Where natural gradient flow goes on separable data with more samples than dimensions. Kerekes et al. characterise the case N ≤ D (least squares) and leave this one open.

\[ \frac{\beta_t}{t} \to \arg\min_v\ \sum_i q_i\,\tilde x_i \cdot v \quad\text{subject to}\quad \tilde x_i \cdot v \ge 1, \qquad q_i = \varphi(-u_i(0)), \]

a linear program, invariant under linear maps of the inputs as the flow is; derived in `pullback.linear`. The flow is at a distance of order 1/t from it.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from ...linear import Logistic, l2_margin
from .._claim import Budget, Claim, Measured, Role, Verdict, at_least, at_most, distance, generator
from ._diagonal_flows import cosine

TIMES = np.array([20.0, 40.0, 80.0, 160.0, 320.0, 640.0])


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """Flow against linear program, on random separable data.

    **Arguments:**

    - `budget`: what may be spent.
    - `key`: the source of chance.
    """
    problems = max(20 if budget.full else 6, budget.seeds)
    errors, others, turned = np.zeros((problems, len(TIMES))), np.zeros(problems), np.zeros(problems)
    model = Logistic()
    for i in range(problems):
        rng = generator(jax.random.fold_in(key, i))
        d = 2 + i % 4
        x, beta = rng.standard_normal((3 * d, d)), jnp.asarray(rng.standard_normal(d) / 2)
        y = np.sign(x @ rng.standard_normal(d))
        data = jnp.asarray(x), jnp.asarray(y)
        v = np.asarray(model.limit_direction(*data, beta))
        errors[i] = [distance(np.asarray(model.flow(beta, *data, t)) / t, v) for t in TIMES]
        others[i] = cosine(v, np.asarray(l2_margin(*data)))
        a = rng.standard_normal((d, d))
        moved = model.limit_direction(jnp.asarray(x @ a.T), data[1], jnp.asarray(np.linalg.solve(a.T, np.asarray(beta))))
        turned[i] = distance(a.T @ np.asarray(moved), v)
    orders = -np.diff(np.log(errors), axis=1)[:, -1] / np.log(2)
    rows = (
        at_most("|β_t/t - v|/|v| at t = 640, largest", errors[:, -1].max(), 0.05),
        at_most("order of convergence in 1/t between t = 320 and 640, largest |order - 1|", np.abs(orders - 1).max(), 0.1),
        at_most("the linear program is affine invariant: largest relative difference", turned.max(), 1e-6),
        at_least(
            "problems in which the limit is not the l2 margin direction (1 - cosine > 1e-6)",
            np.sum(1 - others > 1e-6),
            1,
            Role.CONTROL,
        ),
    )
    return Measured(rows, {"times": TIMES, "errors": errors, "cosines": others})


def figure(data: Mapping[str, Any]) -> Any:
    """The distance to the limit over time.

    **Arguments:**

    - `data`: measured.
    """
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(5, 4), layout="constrained")
    axes = drawing.subplots()
    axes.loglog(data["times"], data["errors"].T, color="#0072b2", alpha=0.6, marker="o", markersize=3)
    axes.loglog(data["times"], 2 / data["times"], "--", color="black", label="2/t")
    axes.set(xlabel="t", ylabel="|β_t/t - v| / |v|", title="Natural gradient flow and its linear program, N > D")
    axes.legend()
    return drawing


CLAIM = Claim(
    "lp-limit",
    "ours",
    "after Theorems 1 to 4 of Kerekes et al.",
    "On separable data with N > D natural gradient flow of logistic regression tends, in direction, to the solution of a linear program that depends on the start through q = φ(-u(0)), at the rate 1/t.",
    Verdict.HOLDS,
    run,
    figure=figure,
)
