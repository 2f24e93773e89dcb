"""The structured kernel and metric of every animal of the zoo against the generic route, in
float64.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import distance
from zoo import ZOO

import pullback as pb
from pullback import pde
from pullback._gram import kernel, kernel_of_rows, product
from pullback.solver._base import whiten
from pullback.solver._krylov import _conjugate_gradients
from pullback.solver._preconditioner import row_inverse
from pullback.solver._structured import find, structured_factors, structured_metric


@pytest.fixture(autouse=True)
def models_as_people_write_them():
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


def measured(animal):
    """K, G and K y by both routes, in one compilation."""

    @eqx.filter_jit
    def run(params, inputs):
        metric = pb.pullback(
            pb.Composite(animal.model, pb_loss, pb.metric.Euclidean()), params, (inputs,)
        )
        operator = whiten(metric, pb.MoorePenrose())
        rows = operator.unit_rows()
        found, single = find(operator), find(operator, single=True)
        out = {}
        if found is not None:
            y = jnp.cos(jnp.arange(rows.shape[0], dtype=rows.dtype))
            out["kernel"] = (kernel(structured_factors(metric, found)), rows @ rows.T)
            out["product"] = (product(structured_factors(metric, found), y), rows @ (rows.T @ y))
        if single is not None:
            order = single.order
            out["metric"] = (structured_metric(metric, single), operator.gram()[order][:, order])
            assert sorted(order) == list(range(metric.size))
        return out

    return run(animal.params, animal.inputs)


def pb_loss(z, *_):
    return sum(jnp.sum(x) for x in jax.tree.leaves(z))


@pytest.mark.parametrize("name", list(ZOO))
def test_zoo(name, monkeypatch):
    # Tiles of about five rows: as they are, these models would all fit in one.
    monkeypatch.setattr("pullback._gram.kernel.TILE", 8 * 5**2)
    animal = ZOO[name]()
    assert_leaves(animal)
    for what, (found, expected) in measured(animal).items():
        found, expected = (np.tril(x) if x.ndim == 2 else np.asarray(x) for x in (found, expected))
        assert np.abs(found - expected).max() <= 1e-12 * max(1.0, np.abs(expected).max()), what


def assert_leaves(animal):
    """The leaves that automatic differentiation is left with are those that were expected, and no
    others.
    """
    metric = pb.pullback(pb.Composite(animal.model, pb_loss), animal.params, (animal.inputs,))
    found = find(whiten(metric, pb.MoorePenrose()))
    free = set(range(len(metric.structure.shapes))) if found is None else set(found.free)
    assert free == animal.free, found and found.walk.free


def small(damping=1e-2):
    rng = np.random.default_rng(3)
    params = [jnp.asarray(rng.standard_normal(shape)) for shape in ((4, 6), (6,), (6, 3))]
    x, y = jnp.asarray(rng.standard_normal((20, 4))), jnp.arange(20) % 3
    problem = pb.Composite(
        lambda p, x: jnp.tanh(x @ p[0] + p[1]) @ p[2], metric=pb.metric.Categorical()
    )
    return problem, params, (x, y), pb.Tikhonov(damping)


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
        pb_loss,
        pb.metric.Euclidean(),
    )
    args = problem, params, ((sizes[:, None], x),), pb.Tikhonov(1e-8)
    plain, blocks = products(*args), products(*args, preconditioner=pb.solver.SampleBlocks())
    assert 3 * blocks < plain, (plain, blocks)


@pytest.mark.parametrize("size", [1.0, 0.0, 1e-200, 1e200, np.nan])
def test_conjugate_gradients_are_blind_to_the_size_of_the_right_hand_side(size):
    rng = np.random.default_rng(7)
    matrix = rng.standard_normal((12, 12))
    matrix = matrix @ matrix.T + np.eye(12)
    # One sample is saturated: its residual never gets small beside its own component.
    b = rng.standard_normal(12) * 10.0 ** np.where(np.arange(12) == 3, -40, 0)
    found, steps = _conjugate_gradients(
        lambda y: matrix @ y, lambda y: y, jnp.asarray(size * b), 1e-13, 1000
    )
    np.testing.assert_allclose(found, size * np.linalg.solve(matrix, b), rtol=1e-10)
    assert int(steps) < 30


def test_the_residual_that_is_met_is_the_true_one():
    """Over eight decades the residual of the recurrence falls below the tolerance where the true
    one has not.
    """
    for seed in range(5):
        rng = np.random.default_rng(seed)
        vectors = np.linalg.qr(rng.standard_normal((80, 80)))[0]
        matrix = (vectors * 10.0 ** np.linspace(0, -8, 80)) @ vectors.T
        b = rng.standard_normal(80)
        found = _conjugate_gradients(
            lambda y, matrix=matrix: matrix @ y, lambda y: y, jnp.asarray(b), 1e-8, 10_000
        )[0]
        assert np.linalg.norm(b - matrix @ found) < 1.01e-8 * np.linalg.norm(b), seed


def blocked(metric, inverse):
    """The blocks (K_nn + λ)⁻¹ that the preconditioner holds, and K."""
    operator = whiten(metric, inverse)
    inverse = row_inverse(operator, pb.solver.SampleBlocks(), jnp.asarray(1e-3))
    eye = jnp.eye(metric.rows)
    kernel = jax.vmap(lambda y: operator.mv(operator.rmv(y)))(eye)
    return np.asarray(jax.vmap(inverse.apply)(eye)), np.asarray(kernel)


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
    assert (find(whiten(metric, inverse)) is None) == (way not in ("structured", "absent"))
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


def test_a_good_start_saves_products():
    problem, params, batch, inverse = small(1e-4)
    exact = pb.natural_gradient(
        problem, params, batch, inverse=inverse, solver=pb.solver.SVD()
    ).vector
    again = pb.natural_gradient(
        problem, params, batch, inverse=inverse, solver=pb.solver.Krylov(start=exact)
    )
    assert distance(again.vector, exact) < 1e-12


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


@pytest.mark.parametrize("inverse", [pb.MoorePenrose(), pb.Tikhonov(1e-3)], ids=str)
def test_rows_of_many_positions_are_kept_for_products(inverse):
    """A Laplacian in four dimensions: nine positions a weight, so that all leaves are rows, in the
    order of the walk and not of the parameters.
    """
    rng = np.random.default_rng(5)
    params = [
        jnp.asarray(rng.standard_normal(shape)) for shape in ((7, 4), (7,), (5, 7), (5,), (1, 5))
    ]

    def one(p, x):
        u = lambda x: (p[4] @ jnp.tanh(p[2] @ jnp.tanh(p[0] @ x + p[1]) + p[3]))[0]
        return pde.laplacian(u, x)

    x = jnp.asarray(rng.standard_normal((12, 4))).at[0].set(jnp.nan)
    measure = pb.Weights(jnp.asarray(np.linspace(0.0, 2.0, 12)))
    problem = pb.Composite(
        lambda p, x: jax.vmap(one, (None, 0))(p, x), lambda r: r**2 / 2, measure=measure
    )
    metric = pb.pullback(problem, params, (x,))
    operator = whiten(metric, inverse)
    plan = find(operator)
    assert (
        plan is not None
        and not plan.factors
        and not np.array_equal(plan.order, np.arange(metric.size))
    )
    kept = metric.factorise(inverse, pb.solver.Dual()).factors.rows.operator
    assert kept.dense is not None and distance(kept.unit_rows(), operator.unit_rows()) < 1e-13
    v, y = jnp.sin(jnp.arange(metric.size)), jnp.cos(jnp.arange(metric.rows))
    assert (
        distance(kept.mv(v), operator.mv(v)) < 1e-13
        and distance(kept.rmv(y), operator.rmv(y)) < 1e-13
    )
    found, expected = (
        pb.natural_gradient(problem, params, (x,), inverse=inverse, solver=s)
        for s in (pb.solver.Dual(), pb.solver.SVD())
    )
    assert distance(found.vector, expected.vector) < 1e-9


@pytest.mark.parametrize("m", [1, 100, 300])
def test_the_kernel_of_rows_is_made_of_lower_blocks(m):
    """Not by a natural gradient, whose refinement forgives a kernel that is a little off."""
    rows = np.random.default_rng(m).standard_normal((m, 7))
    found = np.asarray(kernel_of_rows(jnp.asarray(rows)))
    assert distance(np.tril(found), np.tril(rows @ rows.T)) < 1e-15
    assert m < 300 or found[0, -1] == 0, "nothing is computed above the diagonal blocks"


def test_absent_samples_and_weights_in_the_structured_route():
    problem, params, (x, y), inverse = small()
    weights = jnp.asarray(np.linspace(0.0, 2.0, 20))
    problem = pb.Composite(problem.model, metric=problem.metric, measure=pb.Weights(weights))
    x = x.at[0].set(jnp.nan)
    for solver in (pb.solver.Dual, pb.solver.Primal):
        found, expected = (
            pb.natural_gradient(
                problem, params, (x, y), inverse=inverse, solver=solver(structured=s)
            ).vector
            for s in (True, False)
        )
        assert distance(found, expected) < 1e-11


def test_a_model_with_side_effects_takes_the_generic_route():
    def model(p, x):
        jax.debug.print("", ordered=False)
        return x @ p

    metric = pb.pullback(pb.Composite(model, pb_loss), jnp.ones((4, 2)), (jnp.ones((3, 4)),))
    assert find(whiten(metric, pb.MoorePenrose())) is None


def test_another_gauge_takes_the_generic_route():
    problem, params, batch, _ = small()
    metric = pb.pullback(problem, params, batch)
    assert find(whiten(metric, pb.MoorePenrose(gauge=2.0))) is None
    assert find(whiten(metric, pb.MoorePenrose())) is not None
