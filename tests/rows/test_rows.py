"""The rows A = SᵀJ: results do not depend on the chunk, and the two products are adjoint."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import distance, normal

import pullback as pb
from pullback import testing

MODEL = testing.tanh_mlp(3, 2, 4, jax.random.key(0))


def square(z, y):
    return jnp.sum((z - y) ** 2, axis=1) / 2


def make(samples, coupled=False, function=MODEL.function, metric=None):
    problem = pb.Composite(
        function, square, pb.metric.Gaussian() if metric is None else metric, coupled=coupled
    )
    return testing.Example(problem, MODEL.params, (normal(samples, 3), normal(samples, 2, seed=1)))


def memory_of(chunk, metric):
    """A bound in bytes that allows blocks of so many samples."""
    rows = metric.whitened
    return 3 * (rows.linear.like.size // rows.count) * metric.size * 8 * chunk


@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 5, 6, 7, 8])
def test_the_result_does_not_depend_on_the_chunk(chunk):
    """7 samples: whole blocks, remainders of one and more, one block."""
    example = make(7, metric=pb.metric.Bernoulli())
    whole = pb.pullback(*example)
    parts = pb.pullback(*example, memory=memory_of(chunk, whole))
    assert parts.whitened.chunk == min(chunk, 7)
    assert distance(parts.jacobian(), whole.jacobian()) < 1e-15
    assert distance(parts.matrix(), whole.matrix()) < 1e-14
    assert distance(whole.matrix(), testing.reference_natural_gradient(*example).matrix) < 1e-13


@pytest.mark.parametrize(
    "solver", [pb.solver.SVD(), pb.solver.Primal(), pb.solver.Dual()], ids=lambda s: s.name
)
def test_the_natural_gradient_does_not_depend_on_the_chunk(solver):
    example = make(7)
    expected = testing.reference_natural_gradient(*example)
    for memory in (1, memory_of(3, pb.pullback(*example))):
        assert (
            distance(
                pb.natural_gradient(*example, solver=solver, memory=memory).vector, expected.vector
            )
            < 1e-9
        )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products_are_adjoint_where_they_are_used_in_the_same_program(dtype):
    """XLA of jaxlib 0.10 loses the gradient of the second bias from a sum of padded gradients that
    it fuses with a dot product; at this size it does.
    """
    rng = np.random.default_rng(0)
    params = [
        [jnp.asarray(rng.standard_normal(s) / 16, dtype) for s in ((a, b), (b,))]
        for a, b in ((64, 256), (256, 256), (256, 10))
    ]
    x = jnp.asarray(rng.standard_normal((256, 64)), dtype)

    def model(params, x):
        for w, b in params[:-1]:
            x = jnp.tanh(x @ w + b)
        return x @ params[-1][0] + params[-1][1]

    problem = pb.Composite(model, metric=pb.metric.Categorical())
    v, y = (jnp.asarray(rng.standard_normal(n), dtype) for n in (85002, 2304))

    @jax.jit
    def pairings(params, x, v, y):
        rows = pb.pullback(problem, params, (x, jnp.zeros(256, jnp.int32))).whitened
        return jnp.vdot(y, rows.unit_mv(v)), jnp.vdot(rows.unit_rmv(y), v)

    with jax.numpy_rank_promotion("allow"):
        pushed, pulled = pairings(params, x, v, y)
    # Rounding is of the order of the norms over the root of the number of terms; what was lost was
    # some percent.
    assert abs(float(pushed - pulled)) < (1e-3 if dtype == "float32" else 1e-11) * abs(
        float(pushed)
    )


def scores(samples):
    """One form on the whole batch: rows that belong to no sample."""
    problem = pb.Composite(
        lambda p, x: MODEL.function(p, x)[:, 0], lambda z: jnp.sin(z), pb.metric.Scores()
    )
    return testing.Example(problem, MODEL.params, (normal(samples, 3),))


ROWS = {
    "by sample": lambda: make(5, metric=pb.metric.Bernoulli()),
    "coupled model": lambda: make(5, coupled=True),
    "coupled metric": lambda: scores(5),
}


@pytest.mark.parametrize("gauge", [None, 2.0], ids=["Euclidean", "gauge"])
@pytest.mark.parametrize("name", ROWS)
def test_products_blocks_and_dense_rows_agree(name, gauge):
    example = ROWS[name]()
    for memory in (1, 2**30):
        rows = pb.pullback(*example, memory=memory).whitened.in_gauge(gauge)
        a = np.asarray(rows.scale)[:, None] * np.asarray(rows.unit_rows())
        m, size = rows.shape
        assert a.shape == (m, size)
        v, y = normal(size, seed=1), normal(m, seed=2)
        assert distance(rows.mv(v), a @ v) < 1e-13 and distance(rows.rmv(y), a.T @ y) < 1e-13
        assert distance(rows.gram(), a.T @ a) < 1e-13
        squares = rows.sample_blocks(lambda block: jnp.sum(block**2))
        assert squares.shape == (5,) and np.isclose(float(jnp.sum(squares)), np.sum(a**2))
        formed = rows.formed(rows.unit_rows())
        assert distance(formed.mv(v), a @ v) < 1e-13 and distance(formed.rmv(y), a.T @ y) < 1e-13
        assert distance(rows.from_params(rows.to_params(v)), v) < 1e-15


def test_a_common_factor_is_divided_out_of_the_grading():
    rows = pb.pullback(*make(5, metric=pb.metric.Bernoulli())).whitened
    v = normal(rows.shape[1])
    assert distance(rows.divided_by(jnp.asarray(2.0)).mv(v), np.exp(-2.0) * rows.mv(v)) < 1e-14
    top = float(rows.largest_log_scale)
    assert float(rows.divided_by(rows.largest_log_scale).largest_log_scale) == 0 > top


def test_rows_of_absent_samples_are_zero():
    problem, params, (x, y) = make(5)
    weights = jnp.asarray([1.0, 0.0, 2.0, 1.0, 0.0])
    problem = pb.Composite(problem.model, square, problem.metric, pb.Weights(weights))
    rows = pb.pullback(problem, params, (x.at[1].set(jnp.nan), y)).whitened
    present = np.repeat(np.asarray(weights) > 0, 2)
    assert np.array_equal(rows.active, present)
    dense = np.asarray(rows.unit_rows())
    assert np.all(dense[~present] == 0) and np.all(np.any(dense[present] != 0, axis=1))
    assert np.all(np.asarray(rows.unit_mv(normal(rows.shape[1])))[~present] == 0)
