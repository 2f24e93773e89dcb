"""Matrix products in closed form, against the pseudo-inverse of the Jacobian, and their cost."""

import functools
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pullback as pb
from pullback import linear

SHAPES = {
    "one factor": (4, 5),
    "square, depth 2": (5, 5, 5),
    "square, depth 3": (5, 5, 5, 5),
    "square, depth 4": (4, 4, 4, 4, 4),
    "wide inside": (3, 6, 7, 4),
    "bottleneck, depth 2": (5, 2, 6),
    "bottleneck, depth 3": (5, 6, 2, 4),
    "bottleneck, depth 4": (5, 3, 6, 2, 4),
}


def gaussian(rng, shapes, rank=None):
    """Factors; `rank` is (index, rank) of one that is made singular."""
    factors = [rng.standard_normal(size) for size in itertools.pairwise(shapes)]
    if rank is not None:
        l, r = rank
        u, s, vt = np.linalg.svd(factors[l], full_matrices=False)
        factors[l] = (u[:, :r] * s[:r]) @ vt[:r]
    return tuple(factors)


def chain(matrices, size):
    return functools.reduce(np.matmul, matrices) if len(matrices) else np.eye(size)


def jacobian(factors):
    """∂vec β/∂(vec W_1, ..., vec W_L), row by row."""
    m, n = factors[0].shape[0], factors[-1].shape[1]
    blocks = [
        np.kron(chain(factors[:l], m), chain(factors[l + 1 :], n).T) for l in range(len(factors))
    ]
    return np.hstack([b.reshape(m * n, -1) for b in blocks])


def flat(factors):
    return np.concatenate([np.ravel(w) for w in factors])


def relative(a, b):
    return float(np.linalg.norm(np.asarray(a) - b) / np.linalg.norm(b))


def problem(rng, shapes, rank=None):
    factors = gaussian(rng, shapes, rank)
    target, mask = (
        rng.standard_normal((shapes[0], shapes[-1])),
        rng.random((shapes[0], shapes[-1])) < 0.5,
    )
    mask[0, 0] = True
    return linear.MatrixProduct(len(factors), shapes), factors, target, mask


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_natural_gradients_are_the_moore_penrose_ones(rng, shapes):
    model, factors, target, mask = problem(rng, shapes)
    j, g = jacobian(factors), np.where(mask, chain(factors, shapes[0]) - target, 0).ravel()
    assert relative(flat(model.gradient(factors, target, mask)), j.T @ g) < 1e-12
    assert (
        relative(
            flat(model.natural_gradient(factors, target, mask)), np.linalg.pinv(j, rcond=1e-12) @ g
        )
        < 1e-8
    )
    seen = mask.ravel()
    masked = flat(model.masked_natural_gradient(factors, target, mask))
    assert relative(masked, np.linalg.pinv(j[seen], rcond=1e-10) @ g[seen]) < 1e-7
    assert relative(model.fisher(factors), j.T @ j) < 1e-12
    assert relative(model.fisher(factors, mask), j[seen].T @ j[seen]) < 1e-12


@pytest.mark.parametrize(
    ("shapes", "rank"),
    [
        ((5, 5, 5), (0, 3)),
        ((5, 5, 5), (1, 4)),
        ((5, 5, 5, 5), (1, 3)),
        ((4, 4, 4, 4, 4), (0, 2)),
        ((5, 5, 5, 5), (2, 4)),
    ],
)
def test_a_singular_factor(rng, shapes, rank):
    model, factors, target, mask = problem(rng, shapes, rank)
    j, g = jacobian(factors), np.where(mask, chain(factors, shapes[0]) - target, 0).ravel()
    assert (
        relative(
            flat(model.natural_gradient(factors, target, mask)), np.linalg.pinv(j, rcond=1e-10) @ g
        )
        < 1e-8
    )


def test_two_singular_factors_and_zeros(rng):
    factors = list(gaussian(rng, (4, 4, 4, 4), (0, 2)))
    factors[2] = np.zeros((4, 4))
    model, g = linear.MatrixProduct(3), rng.standard_normal((4, 4))
    expected = np.linalg.pinv(jacobian(factors), rcond=1e-10) @ g.ravel()
    ours = flat(model.natural_gradient(factors, chain(factors, 4) - g))
    assert relative(ours, expected) < 1e-9
    nothing = [np.zeros((3, 3))] * 3
    assert np.all(flat(model.natural_gradient(nothing, np.ones((3, 3)))) == 0)


def test_nearly_singular_factors_keep_their_digits(rng):
    """Eigenvalues of W Wᵀ would know the small singular values to 1e-8 only."""
    u, v = (np.linalg.qr(rng.standard_normal((6, 6)))[0] for _ in range(2))
    factors = (u * np.logspace(0, -6, 6), (np.logspace(-6, 0, 6)[::-1, None]) * v)
    g = rng.standard_normal((6, 6))
    ours = flat(linear.MatrixProduct(2).natural_gradient(factors, chain(factors, 6) - g))
    assert relative(ours, np.linalg.pinv(jacobian(factors), rcond=1e-14) @ g.ravel()) < 1e-7


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_the_split_formula_solves_but_is_not_the_shortest(rng, depth):
    model, factors, target, _ = problem(rng, (5,) * (depth + 1))
    g = chain(factors, 5) - target
    split, shortest = (flat(f(factors, target)) for f in (model.split, model.natural_gradient))
    assert relative(jacobian(factors) @ split, g.ravel()) < 1e-9
    expected = [
        np.linalg.pinv(chain(factors[:l], 5))
        @ g
        @ np.linalg.pinv(chain(factors[l + 1 :], 5))
        / depth
        for l in range(depth)
    ]
    assert relative(split, flat(expected)) < 1e-8
    if depth > 1:
        assert np.linalg.norm(split) > 1.05 * np.linalg.norm(shortest)


def test_an_iteration_that_does_not_converge_is_an_error(rng):
    """Singular values over nine decades in each of four factors."""
    spread = lambda: (
        (np.linalg.qr(rng.standard_normal((30, 30)))[0] * np.logspace(0, -9, 30))
        @ np.linalg.qr(rng.standard_normal((30, 30)))[0]
    )
    model, factors, target = (
        linear.MatrixProduct(4),
        tuple(spread() for _ in range(4)),
        rng.standard_normal((30, 30)),
    )
    with pytest.raises(Exception, match=r"did not converge.*throw=False"):
        model.natural_gradient(factors, target)
    assert np.isfinite(flat(model.natural_gradient(factors, target, throw=False))).all()
    target[0, 0] = np.nan
    assert np.isnan(flat(jax.jit(model.natural_gradient)(factors, target))).any(), (
        "a NaN under jit comes out as one"
    )


def test_the_split_formula_is_no_natural_gradient_past_a_bottleneck_or_a_singular_factor(rng):
    for shapes, rank in (((5, 3, 7), None), ((5, 5, 5, 5), (1, 3))):
        model, factors, target, _ = problem(rng, shapes, rank)
        j = jacobian(factors)
        g = (chain(factors, 5) - target).ravel()
        seen = j @ np.linalg.pinv(j, rcond=1e-10) @ g
        assert relative(j @ flat(model.split(factors, target)), seen) > 0.05
        assert relative(j @ flat(model.natural_gradient(factors, target)), seen) < 1e-9


def test_kernels(rng):
    model, factors, _, _ = problem(rng, (5, 5, 5))
    j = jacobian(factors)
    assert relative(np.ravel(model.ntk(factors, 2, 3)), (j @ j.T)[:, 13]) < 1e-12
    unit = np.zeros((5, 5))
    unit[2, 3] = 1
    assert np.max(np.abs(model.natural_ntk(factors, 2, 3) - unit)) < 1e-9
    narrow, factors, _, _ = problem(rng, (5, 2, 5))
    j = jacobian(factors)
    assert (
        relative(
            np.ravel(narrow.natural_ntk(factors, 2, 3)), (j @ np.linalg.pinv(j, rcond=1e-12))[:, 13]
        )
        < 1e-10
    )


@pytest.mark.parametrize("shapes", [(4, 4, 4), (4, 3, 5, 4)])
def test_agrees_with_the_generic_path(rng, shapes):
    model, factors, target, mask = problem(rng, shapes)
    factors = tuple(jnp.asarray(w) for w in factors)
    observed = jnp.asarray(mask, float)
    loss = lambda z: jnp.sum(observed * (z - target) ** 2) / 2
    generic = pb.Composite(
        lambda ws: jnp.linalg.multi_dot(ws), loss=loss, metric=pb.metric.Euclidean()
    )
    theirs = pb.natural_gradient(generic, factors, solver=pb.solver.Dual()).vector
    assert relative(flat(model.natural_gradient(factors, target, mask)), flat(theirs)) < 1e-8


def test_traces_once_and_keeps_float32(rng):
    model, factors, target, _ = problem(rng, (4, 4, 4, 4))
    single = [jnp.asarray(w, jnp.float32) for w in factors]
    result = jax.jit(model.natural_gradient)(single, jnp.asarray(target, jnp.float32))
    assert all(w.dtype == jnp.float32 for w in result)
    assert relative(flat(result), flat(model.natural_gradient(factors, target))) < 1e-2


def test_effective_rank():
    assert np.isclose(linear.effective_rank(np.eye(5)), 5)
    assert np.isclose(linear.effective_rank(np.outer([1.0, 2.0], [1.0, 1.0, 1.0])), 1)
    assert linear.effective_rank(np.zeros((2, 2))) == 0


def test_minimum_nuclear_norm(rng):
    # A 2 x 2 matrix with three entries given: |β|_* is least at b = c a / d ... here (1, x; x', 1)
    # with x' = 0 observed: x = 0.
    completed, gap = linear.minimum_nuclear_norm(
        np.array([[1.0, 9.0], [0.0, 1.0]]), np.array([[True, False], [True, True]]), 1e-9
    )
    assert float(gap) <= 1e-9
    assert np.allclose(completed, np.eye(2), atol=1e-4)
    target = rng.standard_normal((12, 1)) @ rng.standard_normal((1, 12))
    mask = rng.random((12, 12)) < 0.7
    completed, gap = linear.minimum_nuclear_norm(target, mask, 1e-7)
    assert float(gap) <= 1e-7
    assert relative(completed, target) < 1e-3


MODEL = linear.MatrixProduct(2, (3, 3, 3))
TWO = (np.eye(3), np.eye(3))
BAD = {
    "depth": (
        lambda: linear.MatrixProduct(0),
        r"MatrixProduct\(depth=0\): depth must be an integer of at least 1",
    ),
    "shapes": (lambda: linear.MatrixProduct(2, (3, 3)), "3 dimensions"),
    "count": (lambda: MODEL.product((np.eye(3),)), "factors must be 2 matrices, not 1"),
    "fit": (
        lambda: MODEL.product((np.eye(3), np.eye(2))),
        r"factors\[1\] must be a matrix with 3 rows, the columns of factors\[0\]",
    ),
    "other shapes": (
        lambda: MODEL.product((np.eye(4), np.eye(4))),
        r"dimensions \(3, 3, 3\) of this MatrixProduct, not \(4, 4, 4\)",
    ),
    "target": (lambda: MODEL.loss(TWO, np.eye(2)), r"target must be of the shape \(3, 3\)"),
    "mask": (
        lambda: MODEL.loss(TWO, np.eye(3), np.ones((3, 3))),
        r"MatrixProduct\.loss\(mask=.*mask must be an array of booleans of shape \(3, 3\)",
    ),
    "empty mask": (
        lambda: MODEL.masked_natural_gradient(TWO, np.eye(3), np.zeros((3, 3), bool)),
        "mask must be True in at least one entry",
    ),
    "not finite": (
        lambda: MODEL.loss((np.eye(3), np.full((3, 3), np.inf)), np.eye(3)),
        r"factors\[1\] must be finite, but factors\[1\]\[0, 0\] is not",
    ),
    "entry": (lambda: MODEL.ntk(TWO, 3, 0), r"MatrixProduct\.ntk\(row=3\): row must be an index"),
    "column": (lambda: MODEL.natural_ntk(TWO, 0, -4), r"natural_ntk\(column=-4\)"),
    "traced mask": (
        lambda: jax.jit(lambda mask: MODEL.masked_natural_gradient(TWO, np.eye(3), mask))(
            np.ones((3, 3), bool)
        ),
        "mask must be concrete, not traced: close over it",
    ),
    "nuclear mask": (
        lambda: linear.minimum_nuclear_norm(np.eye(2), np.eye(2)),
        r"minimum_nuclear_norm\(mask=.*mask must be an array of booleans",
    ),
}


@pytest.mark.parametrize(("call", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def cost(what):
    """Run tests/scripts/linear_cost.py without the compiler flags of the tests, which are for quick
    compilation.
    """
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    script = Path(__file__).parents[1] / "scripts" / "linear_cost.py"
    done = subprocess.run(
        [sys.executable, script, what],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    return json.loads(done.stdout)


@pytest.mark.slow
def test_cost_next_to_a_gradient(capsys):
    """D = 100, well-conditioned square factors: ratios to one jitted gradient, shortest times of
    one interleaved run; the best of three, for other processes can only disturb.
    """
    runs = [cost("gradient") for _ in range(3)]
    found = {
        depth: {name: min(run[depth][name] for run in runs) for name in runs[0][depth]}
        for depth in runs[0]
    }
    with capsys.disabled():
        print("\ncost next to a gradient, D = 100:", found)
    assert max(found[depth]["split"] for depth in found) < 3
    # Two eigendecompositions over some products: 8 to 12 from machine to machine.
    assert found["2"]["exact"] < 15
    assert max(found["3"]["exact"], found["4"]["exact"]) < 60


@pytest.mark.slow
def test_faster_than_the_generic_path(capsys):
    """D = 40, depth 3: at least twenty times as fast as the generic dual solver, and the same
    vector.
    """
    found = cost("generic")
    with capsys.disabled():
        print("\ngeneric over closed form, D = 40, depth 3:", found)
    assert found["difference"] < 1e-8
    assert found["ratio"] > 20
    assert found["gigabytes"] < 4


@pytest.mark.parametrize(("depth", "scale"), [(2, 1e-160), (3, 1e-85)])
def test_factors_of_any_size(rng, depth, scale):
    """J⁺ of factors times c is J⁺ over c^(depth - 1), where the squares in K have underflown."""
    model, target = linear.MatrixProduct(depth), rng.standard_normal((3, 3))
    factors = [rng.standard_normal((3, 3)) for _ in range(depth)]
    small = [scale * w for w in factors]
    # The same covector for both.
    at, seen = model.product(factors) - target, np.ones((3, 3), bool)
    seen[0, 1] = False
    goal = model.product(small) - at
    given = np.asarray(model.product(small)) - np.asarray(goal)
    size = scale ** (depth - 1)
    expected = model.natural_gradient(factors, model.product(factors) - given)
    found = model.natural_gradient(small, goal)
    assert relative(flat(found) * size, flat(expected)) < 1e-9
    expected = model.masked_natural_gradient(factors, model.product(factors) - given, seen)
    found = model.masked_natural_gradient(small, goal, seen)
    assert relative(flat(found) * size, flat(expected)) < 1e-9


def test_masked_factors_near_a_singular_one_keep_their_digits(rng):
    """With all entries observed both natural gradients are one."""
    model, target = linear.MatrixProduct(2), rng.standard_normal((3, 3))
    turn = np.linalg.qr(rng.standard_normal((3, 3)))[0]
    for least in (1e-3, 1e-6, 1e-9):
        factors = [np.diag([1, 0.5, least]) @ turn, turn.T @ np.diag([1, 0.5, least])]
        expected = model.natural_gradient(factors, target)
        found = model.masked_natural_gradient(factors, target, np.ones((3, 3), bool))
        assert relative(flat(found), flat(expected)) < 1e-6


def test_effective_rank_of_any_size():
    for size in (1e308, 1e-300, 1.0):
        assert np.isclose(linear.effective_rank(size * np.eye(3)), 3)
    assert np.isnan(jax.jit(linear.effective_rank)(jnp.diag(jnp.array([jnp.inf, 1.0]))))
