"""XLA's fusions on the CPU: what is wrong there, and that nothing here depends on it."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pullback as pb
from pullback._compat import xla

KRYLOV = """
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
solver = pb.solver.Krylov(max_steps=200)

def solve(params, batch):
    return pb.natural_gradient(
        problem, params, batch, inverse=pb.Tikhonov(1e-3), solver=solver, throw=False
    )

ng = (jax.jit(solve) if "jit" in sys.argv else solve)(params, batch)
print(float(ng.stats.residual))
"""

FILL = """
import jax, jax.numpy as jnp, numpy as np
x = np.random.default_rng(0).standard_normal((1024, 64)).astype("float32")
f = lambda x: jnp.sum(x @ jnp.ones((64, 10)))
right = 10 * x.astype("float64").sum()
from pullback._compat.xla import OPTIONS, jit
print(abs(float(jax.jit(f)(x)) - right) < 1, abs(float(jit(f)(x)) - right) < 1)
"""


def run(program, *words):
    """The output of a program in a process of its own, with the flags of a user."""
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, *words],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("words", [(), ("before",), ("jit",)], ids=["plain", "late", "jit"])
def test_a_matrix_free_solve_of_a_thousand_samples(words):
    """Right in any order of imports and in a user's `jit`; LSMR's constant start was NaN there."""
    assert float(run(KRYLOV, *words)) < 1e-3


def test_a_product_with_a_filled_matrix_before_a_sum():
    """The reproduction: if the plain program is right, the version at hand needs no option."""
    plain, ours = run(FILL).split()
    assert ours == "True"
    assert plain == "True" or set(xla.OPTIONS) <= set(xla.options(xla.version("jaxlib")))


def test_which_versions_take_which_options():
    versions = ("0.9.1", "0.10.0", "0.10.1", "0.10.2", "0.11.0", "0.12.0.1", "0.13.0", "1.0")
    right = [v for v in versions if set(xla.OPTIONS) <= set(xla.options(v))]
    assert right == ["0.10.2", "0.11.0", "0.12.0.1"]
    older = [v for v in versions if set(xla.OLDER) <= set(xla.options(v, effort=1))]
    assert not {*xla.OLDER, xla.EFFORT} & set(xla.options("0.10.2"))
    assert all(xla.options(v, effort=0)[xla.EFFORT] == 0 for v in versions)
    assert older == ["0.9.1", "0.10.0", "0.10.1", "0.10.2", "0.11.0"]


def test_both_generators_of_loops_agree():
    """Sums, products, elementary functions, softmax and a second derivative."""
    rng = np.random.default_rng(0)
    w, x = jnp.asarray(rng.normal(size=(5, 7))), jnp.asarray(rng.normal(size=(33, 5)))

    def everything(w, x):
        f = lambda x: jnp.sum(jnp.sin(jnp.tanh(x @ w)))
        laplacian = jax.vmap(lambda x: jnp.trace(jax.hessian(f)(x)))(x)
        return laplacian, jax.nn.log_softmax(x @ w), jnp.cumsum(x, axis=0), jnp.exp(x).sum(1)

    ours = xla.jit(everything, effort=0)(w, x)
    for a, b in zip(ours, jax.jit(everything)(w, x), strict=True):
        assert np.max(np.abs(a - b)) < 1e-14 * np.max(np.abs(b))


def test_inside_a_trace_the_options_are_the_callers():
    double = xla.jit(lambda x: 2 * x)
    x = jnp.arange(3.0)
    assert np.array_equal(jax.jit(double)(x), 2 * x)
    assert np.array_equal(jax.grad(lambda x: jnp.sum(double(x)))(x), np.full(3, 2.0))
    assert np.array_equal(jax.vmap(double)(x), 2 * x)
    # Concrete arguments inside somebody's trace.
    assert np.array_equal(jax.jit(lambda y: y + double(x))(x), 3 * x)
    assert np.array_equal(jax.lax.map(lambda y: y + double(x), x[None])[0], 3 * x)


def test_a_model_may_close_over_a_tracer():
    """With concrete parameters inside a `jit` or a derivative of something else."""
    x = jnp.arange(6.0).reshape(3, 2)

    def length(factor):
        problem = pb.Composite(lambda p, x: factor * (x @ p), lambda z, y: (z - y) ** 2 / 2)
        return jnp.sum(pb.natural_gradient(problem, jnp.ones(2), (x, jnp.zeros(3))).vector)

    factor = jnp.asarray(2.0)
    assert np.allclose(jax.jit(length)(factor), length(factor))
    # The parameters that fit do not depend on the factor of a linear model with zero targets.
    assert abs(float(jax.grad(length)(factor))) < 1e-10


IMPORT = """
import os, warnings
import jax
def state():
    values = {name: getattr(jax.config, name, None) for name in sorted(jax.config.values)}
    return dict(os.environ), list(warnings.filters), values
before = state()
import pullback
after = state()
assert before == after, [a for a, b in zip(before, after) if a != b]
from jax._src import xla_bridge
print(len(xla_bridge._backends))
"""


def test_the_import_has_no_side_effects():
    """Environment, warning filters and configuration stay as they were, and no backend starts."""
    assert run(IMPORT).split() == ["0"]
