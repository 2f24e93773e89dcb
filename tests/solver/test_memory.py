"""Peak memory, each case in a process of its own: nothing quadratic in the larger side of A, and
`Krylov` linear in both.
"""

import json
import subprocess
import sys

import pytest

SCRIPT = """
import json, resource, sys
import jax, jax.numpy as jnp
jax.config.update("jax_enable_x64", True)
import pullback as pb

name, samples, width, hidden, memory = sys.argv[1], *map(int, sys.argv[2:])
k = jax.random.split(jax.random.key(0), 3)
params = {
    "w": jax.random.normal(k[0], (width, hidden)) / width**0.5,
    "v": jax.random.normal(k[1], (hidden,)) / hidden**0.5,
}
x = jax.random.normal(k[2], (samples, width))
problem = pb.Composite(lambda p, x: jnp.tanh(x @ p["w"]) @ p["v"], lambda z, y: (z - y) ** 2 / 2)
batch = (x, jnp.sin(x[:, 0]))
mean = lambda p: problem.loss(problem.model(p, x), batch[1]).mean()
jax.block_until_ready(jax.grad(mean)(params))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
ng = pb.natural_gradient(problem, params, batch, solver=getattr(pb.solver, name)(), memory=memory)
jax.block_until_ready(ng.vector)
peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
print(json.dumps({"peak": peak, "shape": ng.stats.shape, "residual": float(ng.stats.residual)}))
"""


def run(name, samples, width, hidden, memory=2**28):
    command = [sys.executable, "-c", SCRIPT, name, *map(str, (samples, width, hidden, memory))]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    result = json.loads(out.strip().splitlines()[-1])
    mebibytes = result["shape"][0] * result["shape"][1] * 8 / 2**20
    print(
        f"{name}: A is {result['shape']}, {mebibytes:.0f} MiB; peak {result['peak']:.0f} MiB "
        "above the model and one gradient"
    )
    assert result["residual"] < 1e-9
    return result["peak"], mebibytes


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SVD", "Dual"])
def test_two_million_parameters_never_square(name):
    # G would take 30 TB. Some copies of A (153 MiB) are all there is.
    peak, dense = run(name, samples=10, width=1000, hidden=2000)
    assert peak < 6 * dense + 200


@pytest.mark.slow
def test_krylov_is_linear_in_rows_and_parameters():
    # A would take 3 GiB; a vector of parameters takes 15 MiB.
    peak, dense = run("Krylov", samples=200, width=1000, hidden=2000)
    assert peak < 600 < dense / 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Primal", "Auto"])
def test_many_samples_never_square(name):
    # K would take 300 GB; with blocks of rows within 16 MiB A itself (46 MiB) is not held by
    # `Primal` either.
    peak, _ = run(name, samples=200_000, width=5, hidden=5, memory=2**24)
    assert peak < 400
