"""Preconditioners: same solution, fewer products, and the blocks that they hold."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import distance
from zoo import small, sum_of_outputs

import pullback as pb
from pullback._gram.structured import find


@pytest.fixture(autouse=True)
def models_as_people_write_them():
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


@pytest.mark.parametrize(
    "kind",
    [pb.solver.Diagonal(), pb.solver.Kronecker(), pb.solver.Nystrom(12), pb.solver.SampleBlocks()],
    ids=str,
)
def test_preconditioners_change_the_path_and_not_the_solution(kind):
    problem, params, batch, inverse = small()
    expected = pb.natural_gradient(problem, params, batch, inverse=inverse, solver=pb.solver.SVD())
    found = pb.natural_gradient(
        problem, params, batch, inverse=inverse, solver=pb.solver.Krylov(preconditioner=kind)
    )
    assert distance(found.vector, expected.vector) < 1e-10
    assert float(found.stats.residual) < 1e-12


def products(problem, params, batch, inverse, **kwargs):
    """How many products with G or K a solve to 1e-8 takes."""
    metric = pb.pullback(problem, params, batch)
    run = lambda m: m.factorise(inverse, pb.solver.Krylov(1e-8, **kwargs)).factors.counted(
        jnp.ones(m.rows)
    )[1]
    return int(eqx.filter_jit(run)(metric))


def test_a_sketch_of_the_kernel_saves_products():
    rank = 20
    plain, preconditioned = (
        products(*small(1e-6)),
        products(*small(1e-6), preconditioner=pb.solver.Nystrom(rank)),
    )
    assert preconditioned + rank < plain


def test_blocks_of_samples_undo_the_scales_of_the_samples():
    """As in a trained classifier with more parameters than rows, where some samples are saturated
    and others are not.
    """
    rng = np.random.default_rng(6)
    params = [jnp.asarray(rng.standard_normal(shape)) for shape in ((30, 40), (40, 3))]
    x = jnp.asarray(rng.standard_normal((20, 30)))
    sizes = 10.0 ** -(jnp.arange(20) % 4)
    problem = pb.Composite(
        lambda p, inputs: inputs[0] * (jnp.tanh(inputs[1] @ p[0] / 6) @ p[1]),
        sum_of_outputs,
        pb.metric.Euclidean(),
    )
    args = problem, params, ((sizes[:, None], x),), pb.Tikhonov(1e-8)
    plain, blocks = products(*args), products(*args, preconditioner=pb.solver.SampleBlocks())
    assert 3 * blocks < plain, (plain, blocks)


def blocked(metric, inverse):
    """The blocks (K_nn + λ)⁻¹ that the preconditioner holds, and K."""
    operator = metric.whitened.in_gauge(inverse.gauge)
    action = pb.solver.SampleBlocks().build(operator, jnp.asarray(1e-3))
    eye = jnp.eye(metric.rows)
    kernel = jax.vmap(lambda y: operator.mv(operator.rmv(y)))(eye)
    return np.asarray(jax.vmap(action)(eye)), np.asarray(kernel)


@pytest.mark.parametrize(
    "way", ["structured", "generic", "coupled", "gauge", "absent", "without data"]
)
def test_blocks_of_samples_are_those_of_the_kernel(way):
    problem, params, (x, y), _ = small()
    inverse, batch, size = pb.Tikhonov(1e-3), (x, y), 2
    if way == "generic":
        odd = lambda p, x: (
            jnp.cos(jnp.exp(p[1][:3]) * x[..., 1:]) * jnp.sum(p[0] ** 2)
            + jnp.sum(p[2] ** 3) * x[..., :1]
        )
        problem = pb.Composite(odd, metric=pb.metric.Categorical())
    elif way == "coupled":
        problem = pb.Composite(
            lambda p, x: jnp.cumsum(jnp.tanh(x @ p[0] + p[1]) @ p[2], 0),
            metric=pb.metric.Categorical(),
            coupled=True,
        )
    elif way == "gauge":
        inverse = pb.Tikhonov(1e-3, gauge=[1 + p**2 for p in params])
    elif way == "absent":
        problem = pb.Composite(
            problem.model, metric=problem.metric, measure=pb.Weights(jnp.arange(20) % 3 / 10)
        )
    elif way == "without data":
        problem, batch, size = (
            pb.Composite(lambda p: jnp.tanh(p[0] @ p[2]), lambda z: jnp.sum(z**2)),
            None,
            12,
        )
    metric = pb.pullback(problem, params, batch)
    assert (find(metric.whitened.in_gauge(inverse.gauge)) is None) == (
        way not in ("structured", "absent")
    )
    found, kernel = blocked(metric, inverse)
    expected = np.zeros_like(kernel)
    for start in range(0, metric.rows, size):
        part = slice(start, start + size)
        expected[part, part] = np.linalg.inv(kernel[part, part] + 1e-3 * np.eye(len(kernel[part])))
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def test_kronecker_factors_undo_the_scales_of_the_inputs():
    rng = np.random.default_rng(4)
    x = jnp.asarray(
        rng.standard_normal((60, 6))
        @ np.diag(10.0 ** np.arange(-3, 3))
        @ rng.standard_normal((6, 6))
    )
    problem = pb.Composite(lambda w, x: x @ w, metric=pb.metric.Categorical())
    args = problem, jnp.zeros((6, 4)), (x, jnp.arange(60) % 4), pb.Tikhonov(1e-8)
    plain, diagonal, kronecker = (
        products(*args, preconditioner=kind)
        for kind in (None, pb.solver.Diagonal(), pb.solver.Kronecker())
    )
    assert 3 * kronecker < min(plain, diagonal), (plain, diagonal, kronecker)


def test_undamped_a_preconditioner_is_refused():
    problem, params, batch, _ = small()
    with pytest.raises(
        ValueError, match="does not give the minimum norm that MoorePenrose asks for"
    ):
        pb.natural_gradient(
            problem, params, batch, solver=pb.solver.Krylov(preconditioner=pb.solver.Diagonal())
        )
    with pytest.raises(ValueError, match=r"Nystrom\(rank=0\): rank must be an integer >= 1"):
        pb.solver.Nystrom(0)
    for kind in (pb.solver.Nystrom(3), pb.solver.SampleBlocks()):
        with pytest.raises(
            ValueError, match=r"(Nystrom|SampleBlocks) iterates on rows, which have no start"
        ):
            pb.solver.Krylov(start=params, preconditioner=kind)


def test_the_rank_of_a_sketch_is_found():
    problem, params, batch, _ = small()
    metric = pb.pullback(problem, params, batch)
    assert pb.solver.Nystrom.adapted(metric, 1e-12, start=4).rank == metric.rows // 2
    assert pb.solver.Nystrom.adapted(metric, 10.0, start=4).rank == 4
