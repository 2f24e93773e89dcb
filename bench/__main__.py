"""`python -m bench [--quick]`: the exact natural gradient against two things that are hard to beat, measured interleaved in one run.

- *gradient*: one gradient of the same loss;
- *floor*: the matrix products and the factorisation that a dense algorithm of this kind cannot avoid, on a Jacobian that is already
  there: A Aᵀ (or AᵀA) and the eigendecomposition of the smaller of the two (the Cholesky factorisation if damped).

Prints a table of ratios and writes `bench/results.json`. Peers join with the structured kernels.
"""

import argparse
import json
import pathlib
import statistics
import time

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.progress import track
from rich.table import Table

jax.config.update("jax_enable_x64", True)

import pullback as pb  # noqa: E402


def mlp(params, x):
    """A tanh network."""
    for w, b in params[:-1]:
        x = jnp.tanh(x @ w + b)
    w, b = params[-1]
    return x @ w + b


def problem(sizes, samples, dtype):
    """A regression (one output) or a classification problem, its parameters and a batch."""
    keys = jax.random.split(jax.random.key(0), len(sizes) + 1)
    params = [
        (jax.random.normal(k, (a, b), dtype) / a**0.5, jnp.zeros(b, dtype))
        for k, a, b in zip(keys, sizes[:-1], sizes[1:], strict=False)
    ]
    x = jax.random.normal(keys[-2], (samples, sizes[0]), dtype)
    if sizes[-1] == 1:
        y = jnp.sin(x.sum(-1, keepdims=True))
        return pb.Composite(mlp, lambda z, y: jnp.sum((z - y) ** 2, -1) / 2), params, (x, y)
    y = jax.random.randint(keys[-1], (samples,), 0, sizes[-1])
    return pb.Composite(mlp, metric=pb.metric.Categorical()), params, (x, y)


def loss(problem, params, batch):
    """The plain loss, for its gradient."""
    outputs = problem.model(params, batch[0])
    if problem.loss is None:
        return jnp.mean(jax.vmap(problem.metric.negative_log_likelihood)(outputs, batch[1]))
    return jnp.mean(problem.loss(outputs, batch[1]))


def floor(damped):
    """What a dense algorithm cannot avoid, given A."""

    def run(a):
        gram = a @ a.T if a.shape[0] < a.shape[1] else a.T @ a
        if damped:
            return jnp.linalg.cholesky(gram + jnp.eye(gram.shape[0], dtype=a.dtype), symmetrize_input=False)
        return jnp.linalg.eigh(gram)

    return jax.jit(run)


def interleaved(functions, rounds):
    """The median time of each function, called in turn."""
    for function in functions.values():
        jax.block_until_ready(function())
    times = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            start = time.perf_counter()
            jax.block_until_ready(function())
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


WORKLOADS = {
    "regression 2-32-32-1, N=300, float64": ((2, 32, 32, 1), 300, jnp.float64),
    "softmax 20-32-10, N=64, float32": ((20, 32, 10), 64, jnp.float32),
    "softmax 10-16-5, N=1000, float32": ((10, 16, 5), 1000, jnp.float32),
}
INVERSES = {"Moore-Penrose": pb.MoorePenrose(), "Tikhonov(1e-3)": pb.Tikhonov(1e-3)}


def measure(rounds):
    """One row of ratios per workload and inverse."""
    rows = []
    cases = [(w, i) for w in WORKLOADS for i in INVERSES]
    for workload, inverse in track(cases, description="measuring", console=Console(stderr=True)):
        composite, params, batch = problem(*WORKLOADS[workload])
        metric = pb.pullback(composite, params, batch)
        a, base = metric.jacobian(), floor(isinstance(INVERSES[inverse], pb.Tikhonov))
        gradient = jax.jit(jax.grad(lambda p, composite=composite, batch=batch: loss(composite, p, batch)))
        solver = pb.solver.Auto().select(metric.rows, metric.size, metric.dtype, INVERSES[inverse]).solver

        def ours(composite=composite, params=params, batch=batch, inverse=INVERSES[inverse]):
            return pb.natural_gradient(composite, params, batch, inverse=inverse, throw=False).vector

        times = interleaved(
            {"ours": ours, "gradient": lambda g=gradient, p=params: g(p), "floor": lambda b=base, a=a: b(a)}, rounds
        )
        rows.append(
            {
                "workload": workload,
                "inverse": inverse,
                "solver": solver.name,
                "rows": metric.rows,
                "params": metric.size,
                "over_floor": times["ours"] / times["floor"],
                "over_gradient": times["ours"] / times["gradient"],
            }
        )
    return rows


def main():
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="3 rounds instead of 11")
    rows = measure(3 if parser.parse_args().quick else 11)
    table = Table(title="time of one natural gradient, as a ratio")
    for name in ("workload", "A", "inverse", "solver", "/ floor", "/ gradient"):
        table.add_column(name, justify="right" if name.startswith("/") else "left")
    for r in rows:
        shape = f"{r['rows']} x {r['params']}"
        table.add_row(r["workload"], shape, r["inverse"], r["solver"], f"{r['over_floor']:.1f}", f"{r['over_gradient']:.0f}")
    Console().print(table)
    out = pathlib.Path(__file__).parent / "results.json"
    out.write_text(json.dumps({"jax": jax.__version__, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
