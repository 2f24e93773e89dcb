"""Constraints: the nearest point of each set, the slack and the violation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import normal

import pullback as pb


def test_constraints_project_on_the_nearest_point():
    simplex, cone = pb.constraint.Simplex(), pb.constraint.PositiveDefinite(0.1)
    q = normal(3, 4, seed=1)
    p = simplex(q)
    assert (
        np.allclose(jnp.sum(p, axis=1), 1)
        and float(jnp.min(p)) >= 0
        and np.allclose(simplex(p), p, atol=1e-15)
    )
    # The projection condition <q - p, r - p> <= 0 for every r of the set.
    for r in jax.nn.softmax(normal(20, 4, seed=2)):
        assert np.all(np.asarray(jnp.sum((q - p) * (r[None] - p), axis=1)) <= 1e-12)
    matrix = normal(3, 3, seed=3)
    inside = cone(matrix)
    assert (
        np.isclose(np.linalg.eigvalsh(inside).min(), 0.1)
        and float(cone.slack(matrix)) < 0
        and abs(float(cone.slack(inside))) < 1e-12
    )
    safe = inside + inside.T + jnp.eye(3)
    assert np.array_equal(cone(safe), safe) and np.array_equal(
        simplex(jnp.asarray([0.2, 0.3, 0.5])), [0.2, 0.3, 0.5]
    )
    at = pb.constraint.At(lambda t: t["cov"], cone)
    tree = at({"cov": matrix, "mean": jnp.ones(3)})
    assert np.allclose(tree["cov"], inside) and np.all(np.asarray(tree["mean"]) == 1)
    clip = pb.constraint.Clipping(-0.5, 0.5)
    assert (
        np.abs(clip({"a": q, "n": 3})["a"]).max() == 0.5
        and float(clip.violation(q)) == np.abs(q).max() - 0.5
    )
    assert np.array_equal(
        pb.constraint.Clipping({"a": -1.0}, {"a": jnp.ones(4)})({"a": 2 * q[0]})["a"],
        jnp.clip(2 * q[0], -1.0, 1.0),
    )


def test_bounds_and_sets_that_cannot_work_are_refused():
    for lower, upper in (
        (1.0, 0.0),
        (0.5, {"a": 1.0, "b": 0.0}),
        ({"a": 0.0, "b": 2.0}, 1.0),
        ({"a": 0.0, "b": 0.0}, {"a": 1.0}),
        (0.0, float("nan")),
    ):
        with pytest.raises(ValueError, match=r"lower must not exceed upper, e\.g\."):
            pb.constraint.Clipping(lower, upper)
    with pytest.raises(ValueError, match=r"PositiveDefinite\(floor=-1.0\): floor must be finite"):
        pb.constraint.PositiveDefinite(-1.0)
    with pytest.raises(ValueError, match=r"At\(where='cov'\): where must be a function"):
        pb.constraint.At("cov", pb.constraint.Simplex())
    with pytest.raises(ValueError, match=r"At\(constraint=None\): constraint must be a set"):
        pb.constraint.At(lambda p: p, None)


def test_a_box_is_made_inside_jit():
    clip = jax.jit(lambda x, upper: pb.constraint.Clipping(0.0, 1.0)(x) + upper)
    assert np.array_equal(clip(jnp.asarray([-1.0, 0.5, 2.0]), 1.0), [1.0, 1.5, 2.0])
    by_bound = jax.jit(lambda x, upper: pb.constraint.Clipping(jnp.asarray(0.0), upper)(x))
    assert np.array_equal(by_bound(jnp.asarray([-1.0, 0.5, 2.0]), 0.25), [0.0, 0.25, 0.25])
    with pytest.raises(ValueError, match="lower must not exceed upper"):
        jax.jit(lambda x: pb.constraint.Clipping(2.0, 1.0)(x))(jnp.zeros(1))


SETS = (
    (pb.constraint.Clipping(0.0, 1.0), {"p": jnp.asarray([0.5, 2.0])}, [0.5, 1.0]),
    (pb.constraint.Simplex(), {"p": jnp.asarray([0.5, 1.5])}, [0.0, 1.0]),
    (pb.constraint.PositiveDefinite(), {"p": jnp.diag(jnp.asarray([1.0, -1.0]))}, None),
)


@pytest.mark.parametrize("empty", [(0,), (0, 2), (2, 0)])
@pytest.mark.parametrize(("box", "params", "nearest"), SETS)
def test_empty_leaves_have_nothing_to_constrain(box, params, nearest, empty):
    nearest = np.diag([1.0, 0.0]) if nearest is None else nearest
    given = params | {"empty": jnp.zeros(empty), "n": jnp.arange(2)}
    found = box(given)
    assert np.allclose(found["p"], nearest) and found["empty"].shape == empty
    assert float(box.slack(given)) == float(box.slack(params)) < 0
    with pytest.raises(ValueError, match="no floating numbers to constrain"):
        box.slack({"n": jnp.arange(2)})


@pytest.mark.parametrize(
    ("box", "shape", "match"),
    [
        (pb.constraint.Simplex(), (), r"Simplex: params\['p'\] of shape \(\) .* probability vec"),
        (pb.constraint.PositiveDefinite(), (), r"params\['p'\] of shape \(\) .* square matrices"),
        (pb.constraint.PositiveDefinite(), (2,), r"of shape \(2,\) .* square matrices"),
        (pb.constraint.PositiveDefinite(), (2, 3), r"of shape \(2, 3\) .* square matrices"),
    ],
)
def test_arrays_that_are_no_points_are_refused_by_name(box, shape, match):
    params = {"p": jnp.ones(shape), "q": jnp.eye(2)}
    for use in (box, box.slack):
        with pytest.raises(ValueError, match=match):
            use(params)


@pytest.mark.parametrize(
    ("far", "nearest"),
    [
        ([1e17, 0.0, 3.0], [1.0, 0.0, 0.0]),
        ([-1e300, 1e300, -1e300], [0.0, 1.0, 0.0]),
        ([-3e20, -3e20], [0.5, 0.5]),
        ([1e20, 1e20, -1e20, 1e20], [1 / 3, 1 / 3, 0.0, 1 / 3]),
    ],
)
def test_a_point_far_away_has_a_projection_on_the_simplex(far, nearest):
    simplex = pb.constraint.Simplex()
    found = simplex(jnp.asarray(far))
    assert np.allclose(found, nearest, atol=1e-15) and float(simplex.slack(found)) >= 0
    short = simplex(jnp.asarray([3e7, 0.0], jnp.float32))
    assert short.dtype == jnp.float32 and np.array_equal(short, [1.0, 0.0])


def test_a_projection_is_never_refused_for_its_rounding():
    rng, cone = np.random.default_rng(0), pb.constraint.PositiveDefinite(0.01)
    below = 0
    for scale in (1e-6, 1.0, 1e9) * 10:
        matrix = rng.standard_normal((4, 4))
        inside = cone(jnp.asarray(scale * (matrix + matrix.T)))
        cone.refuse(inside)
        below += float(cone.slack(inside)) < 0
    # Otherwise this shows nothing.
    assert below > 5
    for outside in (jnp.diag(jnp.asarray([1.0, 0.0099])), jnp.full((2, 2), jnp.nan)):
        with pytest.raises(ValueError, match="Project it first"):
            cone.refuse(outside)


GROSS = {
    "many parameters": (pb.constraint.Clipping(-1.0, 1.0), lambda n: jnp.full(n, 2.0, jnp.float32)),
    "beside large ones": (
        pb.constraint.At(lambda p: p["s"], pb.constraint.Clipping(0.0, 1.0)),
        lambda n: {"s": jnp.asarray(-0.01, jnp.float32), "w": jnp.full(n, 5.0, jnp.float32)},
    ),
    "infinite": (pb.constraint.Clipping(0.0, 1.0), lambda n: jnp.asarray([0.5, jnp.inf])),
    "minus infinity": (pb.constraint.Clipping(0.0, 1.0), lambda n: jnp.asarray([0.5, -jnp.inf])),
    "NaN": (pb.constraint.Clipping(0.0, 1.0), lambda n: jnp.asarray([0.5, jnp.nan])),
}


@pytest.mark.parametrize("name", GROSS)
def test_what_is_no_rounding_is_refused_however_many_parameters_there_are(name):
    kept, make = GROSS[name]
    with pytest.raises(ValueError, match="violates the constraint"):
        kept.refuse(make(10**7))


def test_projections_of_many_parameters_are_not_refused():
    for dtype in (jnp.float32, jnp.float64):
        point = jnp.asarray(np.random.default_rng(0).normal(size=100_000), dtype)
        pb.constraint.Simplex().refuse(pb.constraint.Simplex()(point))
        pb.constraint.Clipping(-1.0, 1.0).refuse(jnp.clip(point, -1.0, 1.0))
