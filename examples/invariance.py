"""Which optimiser is invariant, in which sense, and to what order? A table of measured numbers.

`python examples/invariance.py picture.png` also draws the discrepancy of one step against its size
(by default `pictures/invariance.png`). The model has tied weights, 14 parameters and 4 logits.
Columns: Definition 5 (model), what the metric sees of it, Definition 6 (params), the same in the
gauge of the change of parameters, Definition 4, and the orders of one step and of trajectories.
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from _pictures import picture_path

import pullback as pb
from pullback import testing

jax.config.update("jax_enable_x64", True)
MODEL = testing.tied_weights(2, 1, 2, jax.random.key(0))
BATCH = (jax.random.normal(jax.random.key(1), (4, 2)), jnp.asarray([1.0, 0.0, 1.0, 1.0]))
PROBLEM = pb.Composite(lambda p, x: MODEL.function(p, x)[:, 0], metric=pb.metric.Bernoulli())


def cross_entropy(z, y):
    return jax.nn.softplus(z) - y * z


def gauss_newton(problem, params, batch):
    """(JᵀJ)⁺g: the natural gradient of the Euclidean metric on the logits."""
    return pb.natural_gradient(
        pb.Composite(problem.model, cross_entropy, pb.metric.Euclidean()), params, batch
    ).vector


METHODS = {
    "natural, Moore-Penrose": pb.MoorePenrose(),
    "natural, truncated rank 3": pb.TruncatedRank(3),
    "natural, Tikhonov 0.01": pb.Tikhonov(0.01),
    "Gauss-Newton": gauss_newton,
    "SGD": optax.sgd(1.0),
    "Adam": optax.adam(0.1),
    "L-BFGS": optax.lbfgs(),
}
COLUMNS = ("model", "seen", "parameters", "gauged", "independence", "order", "trajectory_order")
HEADS = ("model", "metric", "params", "gauge", "Def. 4", "order", "trajectory")


def main(path: Path) -> int:
    f = pb.random_reparametrisation(MODEL.params, jax.random.key(2))
    page = pb.examine(PROBLEM, MODEL.params, BATCH)
    print(page, "\n")
    print(f"{'relative discrepancies and orders':<34}" + "".join(f"{head:>12}" for head in HEADS))
    records = {}
    for name, method in METHODS.items():
        record = records[name] = pb.check_invariance(
            PROBLEM, MODEL.params, BATCH, reparametrisation=f, method=method, counts=(8, 16)
        )
        numbers = [getattr(record, column) for column in COLUMNS]
        print(f"{name:<34}" + "".join(f"{'-' if np.isnan(x) else f'{x:.2g}':>12}" for x in numbers))
    figure, _ = pb.plot.orders({name: (r.steps, r.discrepancies) for name, r in records.items()})
    figure.savefig(path, dpi=150)
    natural, plain = records["natural, Moore-Penrose"], records["SGD"]
    holds = (
        natural.model < 1e-9
        and abs(natural.order - 2) < 0.05
        and natural.parameters > 0.01
        and abs(plain.order - 1) < 0.1
    )
    print(
        f"\nTheorem 2 {'holds' if holds else 'FAILS'}: natural to order {natural.order:.3f}, "
        f"Euclidean to order {plain.order:.3f}; picture: {path}"
    )
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main(picture_path("invariance.png")))
