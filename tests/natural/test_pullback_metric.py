"""The pullback metric at a point: every method equals its dense definition."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import distance, flat, make_example, normal, smooth_loss

import pullback as pb
from pullback import testing
from pullback.testing import _reference

CASES = [
    ("categorical", "overparametrised"),
    ("gaussian mean scale named tuple", "tied weights"),
    ("riemannian", "underparametrised"),
    ("scores", "dead unit"),
    ("euclidean scaled tree", "carried leaves"),
]


@pytest.fixture(scope="module", params=CASES, ids=", ".join)
def point(request):
    example = make_example(*request.param)
    return (
        example,
        pb.pullback(*example, solver=pb.solver.SVD()),
        testing.reference_natural_gradient(*example),
    )


def vector_like(params, seed):
    moving = eqx.filter(params, eqx.is_inexact_array)
    leaves, treedef = jax.tree.flatten(moving)
    return jax.tree.unflatten(
        treedef, [normal(*x.shape, seed=seed + i) for i, x in enumerate(leaves)]
    )


def output_like(metric, seed):
    leaves, treedef = jax.tree.flatten(eqx.filter(metric.outputs, eqx.is_inexact_array))
    return jax.tree.unflatten(
        treedef, [normal(*x.shape, seed=seed + i) for i, x in enumerate(leaves)]
    )


def by_sample(tree):
    """Output leaves in one vector, sample by sample, as in the reference."""
    leaves = jax.tree.leaves(eqx.filter(tree, eqx.is_inexact_array))
    return np.concatenate([np.asarray(x).reshape(x.shape[0], -1) for x in leaves], axis=1).ravel()


def close(found, expected, tolerance=1e-11):
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape
    assert np.max(np.abs(found - expected)) <= tolerance * np.max(np.abs(expected))


def test_pushforward_and_pull_are_the_jacobian_and_its_transpose(point):
    example, metric, dense = point
    v, c = vector_like(example.params, 1), output_like(metric, 2)
    close(by_sample(metric.pushforward(v)), dense.jacobian @ flat(v))
    pulled = metric.pull(c)
    close(flat(pulled), dense.jacobian.T @ by_sample(c))
    assert jax.tree.structure(pulled) == jax.tree.structure(v)


def test_flat_inner_and_norm(point):
    example, metric, dense = point
    u, v = vector_like(example.params, 1), vector_like(example.params, 5)
    close(flat(metric.flat(v)), dense.matrix @ flat(v))
    close(metric.inner(u, v), flat(u) @ dense.matrix @ flat(v), 1e-10)
    close(metric.norm(v) ** 2, flat(v) @ dense.matrix @ flat(v))


@pytest.mark.parametrize(
    "inverse", [pb.MoorePenrose(), pb.Tikhonov(0.1)], ids=["moore-penrose", "tikhonov"]
)
def test_sharp_is_the_inverse_of_flat(point, inverse):
    example, metric, dense = point
    g = vector_like(example.params, 3)
    values, vectors = np.linalg.eigh(dense.matrix)
    kept = values > 1e-11 * values[-1]
    h = (
        np.where(kept, 1 / np.where(kept, values, 1.0), 0.0)
        if isinstance(inverse, pb.MoorePenrose)
        else 1 / (values + 0.1)
    )
    expected = vectors @ (h * (vectors.T @ flat(g)))
    for solver in (pb.solver.SVD(), pb.solver.Primal(), pb.solver.Dual()):
        assert distance(metric.sharp(g, inverse, solver), expected) < 1e-9


def test_project_is_the_orthogonal_projection_on_the_tangent_space(point):
    _, metric, dense = point
    ambient = output_like(metric, 4)
    root = _reference.square_root(dense.metric)
    # J (M^{1/2} J)⁺ M^{1/2} ambient
    expected = (
        dense.jacobian
        @ np.linalg.pinv(root @ dense.jacobian, rcond=1e-10)
        @ root
        @ by_sample(ambient)
    )
    projected = metric.project(ambient)
    close(by_sample(projected), expected, 1e-9)
    close(by_sample(metric.project(projected)), by_sample(projected), 1e-9)


def test_matrix_kernel_spectrum_and_rank(point):
    _, metric, dense = point
    close(metric.matrix(), dense.matrix)
    assert metric.jacobian().shape == (metric.rows, metric.size)
    kernel = np.asarray(metric.kernel())
    assert kernel.shape == (metric.rows, metric.rows)
    wanted = np.sort(np.linalg.eigvalsh(dense.matrix))[::-1]
    padded = np.zeros(max(metric.rows, metric.size))
    padded[: metric.rows] = np.sort(np.linalg.eigvalsh(kernel))[::-1]
    close(padded[: metric.size], wanted)
    count = min(metric.rows, metric.size)
    close(metric.spectrum(), wanted[:count])
    assert metric.spectrum().shape == (count,)
    assert int(metric.rank()) == dense.rank == int(np.sum(wanted > 1e-12 * wanted[0]))
    assert int(metric.rank(solver=pb.solver.Krylov())) == -1


def test_factorise_once_solve_many():
    problem, params, batch = testing.prescribed(3, 6, 5)
    metric = pb.pullback(problem, params, batch)
    factors, a = metric.factorise(), np.asarray(batch[0])
    for seed in range(3):
        r, g = normal(6, seed=seed), normal(5, seed=seed)
        close(factors.solve_lifted(r), np.linalg.pinv(a, rcond=1e-10) @ r)
        close(factors.solve_covector(g), np.linalg.pinv(a.T @ a, rcond=1e-10) @ g)
    close(metric.spectrum()[:3], np.geomspace(1.0, 0.1, 3) ** 2)
    assert int(factors.rank) == 3


def test_a_covector_of_the_wrong_structure_is_refused():
    metric = pb.pullback(*testing.prescribed(3, 6, 5))
    with pytest.raises(
        ValueError,
        match=r"expected a tree .* with shapes \(\(5,\),\), got .* with shapes \(\(4,\),\)",
    ):
        metric.flat(jnp.ones(4))


@pytest.mark.parametrize("call", ["pull", "project"])
def test_an_output_of_the_wrong_shape_is_refused(call):
    metric = pb.pullback(*make_example("categorical", "overparametrised"))
    shape = metric.outputs.shape
    wanted = rf"{call}\(.*like the outputs, .*{shape[0]}, {shape[1]}\)\]; got .*\(2, 2\)\]"
    with pytest.raises(ValueError, match=wanted):
        getattr(metric, call)(jnp.ones((2, 2)))


def test_the_loss_is_not_looked_at():
    problem, params, batch = make_example("categorical", "overparametrised")
    other = pb.Composite(problem.model, smooth_loss, problem.metric)
    close(
        pb.pullback(problem, params, batch).matrix(),
        pb.pullback(other, params, (batch[0],)).matrix(),
    )
