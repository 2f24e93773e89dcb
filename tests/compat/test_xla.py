"""XLA's fusions: right with what `import pullback` tells it, on the version at hand."""

import os
import subprocess
import sys

import pytest

from pullback._compat import xla as _xla

PROGRAM = """
import sys
import jax, jax.numpy as jnp
if "before" in sys.argv:
    jnp.ones(3)
import numpy as np
import pullback as pb

def model(params, x):
    for w, b in params[:-1]:
        x = jnp.tanh(x @ w + b)
    return x @ params[-1][0] + params[-1][1]

rng = np.random.default_rng(0)
make = lambda *s: jnp.asarray(rng.standard_normal(s), "float32")
params = [(make(a, b) / a**0.5, make(b) / 10) for a, b in ((64, 256), (256, 256), (256, 10))]
batch = (make(1024, 64), jnp.arange(1024) % 10)
problem = pb.Composite(model, metric=pb.metric.Categorical())
ng = pb.natural_gradient(problem, params, batch, inverse=pb.Tikhonov(1e-3), solver=pb.solver.Krylov(max_steps=200), throw=False)
print(float(ng.stats.residual))
"""


def run(*words, flags=""):
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"} | (
        {"XLA_FLAGS": flags} if flags else {}
    )
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )


def test_a_matrix_free_solve_of_a_thousand_samples():
    """Without the flag, jaxlib 0.10 and 0.12 return zero or NaN here."""
    done = run()
    assert float(done.stdout) < 1e-3 and "RuntimeWarning" not in done.stderr


@pytest.mark.skipif(not _xla.affected(_xla.version("jaxlib")), reason="this jaxlib needs no flag")
def test_a_late_import_is_told():
    assert f"set XLA_FLAGS={_xla.FLAG}" in run("before").stderr


def test_versions_and_what_the_user_has_chosen(monkeypatch):
    assert [
        _xla.affected(v)
        for v in ("0.9.1", "0.10.0", "0.10.2", "0.11.0", "0.12.0.1", "0.13.0", "1.0")
    ] == [
        False,
        True,
        True,
        True,
        True,
        False,
        False,
    ]
    monkeypatch.setattr(_xla, "version", lambda name: "0.10.2")
    monkeypatch.setattr(_xla, "_running", lambda: False)
    for given, expected in {
        "": f"{_xla.FLAG}={_xla.SINGLE}",
        "--a=b": f"--a=b {_xla.FLAG}={_xla.SINGLE}",
        f"{_xla.FLAG}=": f"{_xla.FLAG}=",
    }.items():
        monkeypatch.setenv("XLA_FLAGS", given)
        _xla.secure()
        assert os.environ["XLA_FLAGS"] == expected
