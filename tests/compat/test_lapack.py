"""The factorisation in place: LAPACK's own routine, and what stands in where it has no name."""

from importlib.metadata import version

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pullback as pb
from pullback._compat import lapack as _cholesky
from pullback._compat.xla import OLDER


def matrices(dtype, n=7):
    a = np.random.default_rng(0).standard_normal((3, n, n)).astype(dtype)
    positive = a @ a.transpose(0, 2, 1) + np.eye(n, dtype=dtype)
    positive[1] -= 40 * np.eye(n, dtype=dtype)
    return jnp.asarray(positive)


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_lower_triangle_and_success_one_by_one_and_mapped(dtype, named, monkeypatch):
    if not named:
        monkeypatch.setattr(_cholesky, "_target", lambda dtype: None)
    batch = matrices(dtype)
    # What is above the diagonal is not looked at.
    dirty = jnp.where(jnp.triu(jnp.ones((7, 7), bool), 1), jnp.nan, batch)
    mapped = jax.jit(jax.vmap(_cholesky.cholesky))(dirty)
    for k, (matrix, fine) in enumerate(zip(np.asarray(batch), [True, False, True], strict=True)):
        for factor, positive in (
            jax.jit(_cholesky.cholesky)(dirty[k]),
            jax.tree.map(lambda x, k=k: x[k], mapped),
        ):
            assert bool(positive) == fine
            if fine:
                expected = np.linalg.cholesky(matrix.astype(float))
                assert (
                    np.abs(np.tril(factor) - expected).max()
                    < 50 * np.finfo(dtype).eps * np.abs(expected).max()
                )


def test_the_name_is_known_here():
    """Otherwise every damped solve takes a second matrix: see what jaxlib calls it now."""
    for dtype in ("float32", "float64"):
        assert _cholesky._target(dtype)


def test_no_second_matrix():
    n = 300

    def solve(y):
        matrix = jnp.full((n, n), 0.1 / n).T.at[jnp.arange(n), jnp.arange(n)].set(1.0 + y[0])
        factor, positive = _cholesky.cholesky(matrix)
        return jax.scipy.linalg.cho_solve((factor, True), y), positive

    # With the generator of loops that programs have by default (see `conftest.py`).
    newer = {name: True for name in OLDER if version("jaxlib") < "0.11.1"}
    compiled = jax.jit(solve).lower(jnp.ones(n)).compile(compiler_options=newer)
    assert compiled.memory_analysis().temp_size_in_bytes < 1.5 * n * n * jnp.ones(()).itemsize


@pytest.mark.parametrize(
    "solver",
    [pb.solver.Dual(), pb.solver.Dual(structured=False), pb.solver.Primal()],
    ids=["structured", "generic", "primal"],
)
@pytest.mark.parametrize("damping", [1e-10, 1e-3])
def test_below_rounding_eigenvectors_stand_in_and_it_is_said(solver, damping):
    # Diagonal, so that eigenvectors are exact: s² of 1e8 and of 1e-10, which beside it is below
    # rounding, and of the size of λ.
    inputs = jnp.asarray([[1e4, 0.0], [0.0, 1e-5]]) * np.sqrt(2)
    problem = pb.Composite(
        lambda w, x: x @ w, loss=lambda z, t: (z - t) ** 2 / 2, metric=pb.metric.Euclidean()
    )
    target = jnp.asarray([3.0, -2.0])
    ng, exact = (
        pb.natural_gradient(
            problem, jnp.zeros(2), (inputs, target), inverse=pb.Tikhonov(damping), solver=s
        )
        for s in (solver, pb.solver.SVD())
    )
    assert bool(ng.stats.fallback) == (damping < 1e-8)
    assert ("Cholesky fell back on eigenvectors" in str(ng.stats)) == (damping < 1e-8)
    np.testing.assert_allclose(ng.vector, exact.vector, rtol=1e-8)
