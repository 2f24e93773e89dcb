"""Domains, conditions and points: residuals in closed form, terms against a dense stack."""

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest

import pullback as pb
from pullback import pde

KEY = jax.random.key(3)
BOX = pde.Box([0.0, -1.0], [2.0, 3.0])
TIME = pde.Domain(BOX, evolution=True)
SPACE = pde.Domain(BOX, evolution=False)


def wave(x):
    return jnp.sin(x[0]) * jnp.cos(2 * x[1])


def pair(x):
    return jnp.stack([wave(x), x[0] * x[1]])


def at(condition, u, domain=SPACE, key=KEY):
    """The points of a condition, and its residual at each."""
    points = condition.sample(key, domain)
    return points, jax.vmap(lambda point: condition.residual(u, point))(points)


def test_points_of_a_box_are_inside_and_on_its_faces():
    inside = np.asarray(BOX(KEY, 200))
    assert inside.shape == (200, 2)
    assert np.all((inside > np.asarray(BOX.lower)) & (inside < np.asarray(BOX.upper)))
    points, normals = BOX.boundary(KEY, 400)
    ends = [(axis, side) for axis in range(2) for side in range(2)]
    counts = []
    for axis, side in ends:
        on = np.asarray(points[:, axis] == (BOX.lower, BOX.upper)[side][axis])
        counts.append(on.sum())
        assert np.all(np.asarray(normals)[on] == np.eye(2)[axis] * (2 * side - 1))
    assert sum(counts) == 400 and min(counts) > 60
    only = BOX.boundary(KEY, 50, [(1, 1)])[0]
    assert np.all(only[:, 1] == 3.0)


def test_dirichlet_on_faces_at_own_points_and_of_a_component():
    x, r = at(pde.Dirichlet(lambda x: x[0], 20), wave)
    np.testing.assert_allclose(r, np.sin(x[:, 0]) * np.cos(2 * x[:, 1]) - x[:, 0], atol=1e-14)
    x, r = at(pde.Dirichlet(0.5, 20), wave, TIME)
    assert not np.any((x[:, 0] == 0.0) | (x[:, 0] == 2.0))  # time is no boundary
    circle = lambda key, n: jnp.stack([jnp.cos(jnp.arange(n)), jnp.sin(jnp.arange(n))], axis=1)
    x, r = at(pde.Dirichlet(0.0, 5, where=circle, component=1), pair)
    np.testing.assert_allclose(r, x[:, 0] * x[:, 1], atol=1e-14)


def test_neumann_is_the_outward_slope():
    (x, _), r = at(pde.Neumann(0.0, 30, where=[(1, 0)]), wave)
    # The outward normal of the lower face points down.
    np.testing.assert_allclose(r, 2 * np.sin(x[:, 0]) * np.sin(2 * x[:, 1]), atol=1e-13)
    own = lambda key, n: (jnp.ones((n, 2)), jnp.tile(jnp.asarray([[0.6, 0.8]]), (n, 1)))
    _, r = at(pde.Neumann(1.0, 3, where=own), wave)
    slope = 0.6 * np.cos(1) * np.cos(2) - 0.8 * 2 * np.sin(1) * np.sin(2)
    np.testing.assert_allclose(r, slope - 1, atol=1e-14)


def test_initial_values_and_rates_periodic_ends_and_data():
    x, (value, rate) = at(pde.Initial(0.0, 10, rate=lambda x: x[1]), wave, TIME)
    assert np.all(x[:, 0] == 0)
    np.testing.assert_allclose(value, 0.0, atol=1e-14)
    np.testing.assert_allclose(rate, np.cos(2 * x[:, 1]) - x[:, 1], atol=1e-14)
    (low, high), (jump, slope) = at(pde.Periodic(1, 10), lambda x: x[0] * x[1] ** 2)
    assert np.all(low[:, 1] == -1) and np.all(high[:, 1] == 3) and np.all(low[:, 0] == high[:, 0])
    np.testing.assert_allclose(jump, low[:, 0] * (1 - 9), rtol=1e-13)
    np.testing.assert_allclose(slope, 2 * low[:, 0] * (-1 - 3), rtol=1e-13)
    x = jnp.asarray([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])
    _, r = at(pde.Data(x, jnp.ones(3), component=1), pair)
    np.testing.assert_allclose(r, np.prod(np.asarray(x), axis=1) - 1, atol=1e-15)
    (some, _), r = at(pde.Data(x, jnp.ones(3), points=2), wave)
    assert r.shape == (2,) and len({tuple(p) for p in np.asarray(some).tolist()}) == 2


def small(**options):
    return pde.Equation(
        residual=lambda u, x: pde.laplacian(u, x) + u(x) ** 2,
        domain=BOX,
        inside=7,
        conditions=[
            pde.Dirichlet(lambda x: x[0], 4),
            pde.Dirichlet(1.0, 3, where=[(0, 0)]),
            pde.Periodic(1, 2),
        ],
        **options,
    )


def test_terms_are_the_stack_of_all_residuals():
    equation = small(weights={"dirichlet2": 10.0})
    assert equation.names == ("inside", "dirichlet", "dirichlet2", "periodic")
    params = pde.initialise(KEY, (2, 3, 1), domain=BOX)
    batch = equation.points(KEY)
    flat, unravel = jax.flatten_util.ravel_pytree(params)

    def stack(flat):
        u = lambda y: pde.network(unravel(flat), y)
        x, one, two, (low, high) = (batch[name][0] for name in equation.names)
        slope = jax.grad(lambda y: u(y))
        jump = jax.vmap(lambda a, b: jnp.stack([u(a) - u(b), slope(a)[1] - slope(b)[1]]))(low, high)
        inside = jax.vmap(lambda y: jnp.trace(jax.hessian(u)(y)) + u(y) ** 2)(x)
        first = jax.vmap(lambda y: u(y) - y[0])(one)
        second = jax.vmap(lambda y: u(y) - 1.0)(two)
        parts = (inside / 7**0.5, first / 2, second * (10 / 3) ** 0.5, jump.ravel() / 2**0.5)
        return jnp.concatenate(parts)

    a, r = np.asarray(jax.jacobian(stack)(flat)), np.asarray(stack(flat))
    expected = np.linalg.solve(a.T @ a + 0.1 * np.eye(flat.size), a.T @ r)
    ng = pb.natural_gradient(equation.problem(), params, batch, inverse=pb.Tikhonov(0.1))
    found = jax.flatten_util.ravel_pytree(ng.vector)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(ng.value, r @ r / 2, rtol=1e-12)


def test_a_field_may_satisfy_its_conditions_by_construction():
    equation = pde.Equation(
        residual=lambda u, x: pde.laplacian(u, x) + 1.0, domain=BOX, inside=5, conditions=[]
    )
    assert equation.names == ("inside",)
    batch = equation.points(KEY)
    assert set(batch) == {"inside"} and batch["inside"][0].shape == (5, 2)
    hard = lambda params, x: params * jnp.sin(x[0])
    (x,) = batch["inside"]
    problem = equation.problem(hard)
    value = problem.value(problem.outputs(jnp.asarray(2.0), {"inside": x}), batch)
    np.testing.assert_allclose(value, np.mean((1 - 2 * np.sin(x[:, 0])) ** 2) / 2, rtol=1e-14)


def test_a_system_and_a_residual_that_receives_the_parameters():
    equation = pde.Equation(
        residual=lambda u, x, p: (p["k"] * pde.partial(lambda y: u(y)[0], x, 0), u(x)[1] - x[0]),
        domain=BOX,
        inside=5,
        conditions=[pde.Dirichlet(0.0, 4, component=0)],
    )
    params = {"network": pde.initialise(KEY, (2, 3, 2), domain=BOX), "k": jnp.asarray(2.0)}
    field = lambda p, x: pde.network(p["network"], x)
    batch = equation.points(KEY)
    outputs = equation.problem(field).outputs(params, {k: v[0] for k, v in batch.items()})
    assert outputs["inside"].shape == (5, 2) and outputs["dirichlet"].shape == (4,)
    x = batch["inside"][0]
    jac = jax.vmap(lambda y: jax.jacobian(lambda z: field(params, z))(y))(x)
    np.testing.assert_allclose(outputs["inside"][:, 0], 2 * jac[:, 0, 0], rtol=1e-12)


def test_points_by_residual_are_where_it_is_large():
    equation = pde.Equation(
        residual=lambda u, x: u(x),
        domain=pde.Box([0.0], [1.0]),
        inside=200,
        conditions=[pde.Dirichlet(0.0, 2)],
        adaptive=pde.ByResidual(candidates=8, floor=0.0),
    )
    field = lambda p, x: jnp.where(x[0] > 0.75, 1.0, 0.0) * p
    draw = equation.batches(KEY, field)
    x = draw(KEY, jnp.ones(()))["inside"][0]
    assert np.all(x > 0.75) and np.unique(x).size == 200
    # Zero everywhere, or not finite: uniform.
    for value in (0.0, jnp.nan):
        x = draw(KEY, jnp.full((), value))["inside"][0]
        assert 0.15 < np.mean(np.asarray(x) > 0.75) < 0.35


@pytest.mark.parametrize(("size", "power"), [(1e200, 1.0), (1e-200, 2.0), (1e160, 2.0)])
def test_points_by_residual_do_not_depend_on_its_unit(size, power):
    rule = pde.ByResidual(candidates=8, power=power, floor=0.5)
    residuals = jax.random.normal(KEY, (80, 2))
    plain, scaled = (rule.choose(KEY, unit * residuals, 10) for unit in (1.0, size))
    np.testing.assert_array_equal(scaled, plain)


def test_new_points_in_every_step_unless_said_otherwise():
    one, two = jax.random.split(KEY)
    draw = small().batches(KEY)
    assert callable(draw) and np.any(draw(one)["inside"][0] != draw(two)["inside"][0])
    fixed = small(renewed=False).batches(KEY)
    assert isinstance(fixed, dict) and fixed["periodic"][0][0].shape == (2, 2)


@pytest.fixture
def mixing():
    """Models as people write them, real points among complex numbers."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.mark.usefixtures("mixing")
def test_errors_compare_point_by_point():
    case = lambda solution: pde.Equation(
        residual=lambda u, x: u(x), domain=BOX, solution=solution, inside=3, border=3
    )
    x = BOX(KEY, 50)
    plane = lambda x: x[0] - x[1]
    for field in (lambda _, x: 1.5 * plane(x), lambda _, x: 1.5 * plane(x)[None]):
        error, relative = case(plane).errors(None, x, field)
        size = np.sqrt(np.mean(np.asarray(x[:, 0] - x[:, 1]) ** 2))
        np.testing.assert_allclose([error, relative], [size / 2, 0.5], rtol=1e-12)
    turning = lambda x: jnp.exp(1j * x[0])
    found = case(turning).errors(None, x, lambda _, x: turning(x) * (1 + 0.1j))
    np.testing.assert_allclose(found, [0.1, 0.1], rtol=1e-12)
    with pytest.raises(ValueError, match=r"same shape at a point, got \(2,\) and \(\)"):
        case(plane).errors(None, x, lambda _, x: pair(x))


@pytest.mark.usefixtures("mixing")
def test_complex_residuals_have_the_square_of_their_modulus():
    equation = pde.Equation(
        residual=lambda u, x: 1j * pde.partial(u, x, 0) + pde.laplacian(u, x, [1]),
        domain=BOX,
        inside=5,
        adaptive=pde.ByResidual(),
        conditions=[pde.Dirichlet(lambda x: jnp.exp(1j * x[1]), 4)],
    )
    field = lambda p, x: jnp.tanh(jnp.sum(p * x))
    params = jnp.asarray([0.3 + 0.2j, -0.4 + 0.1j])
    batch = equation.points(KEY, params, field)
    inside, border = batch["inside"][0], batch["dirichlet"][0]
    u = jax.vmap(lambda x: jnp.tanh(jnp.sum(params * x)))
    slope = 1 - u(inside) ** 2
    r = 1j * params[0] * slope - 2 * u(inside) * slope * params[1] ** 2
    b = u(border) - jnp.exp(1j * border[:, 1])
    expected = (np.mean(np.abs(r) ** 2) + np.mean(np.abs(b) ** 2)) / 2
    ng = pb.natural_gradient(equation.problem(field), params, batch)
    np.testing.assert_allclose(ng.value, expected, rtol=1e-12)


@pytest.mark.parametrize("value", [2j, np.array(2j)], ids=["number", "array"])
def test_values_and_data_may_be_complex(value):
    """The imaginary part counts, beside a real field too."""
    x = jnp.asarray([[0.3, -0.2]])
    plane = lambda y: jax.lax.complex(jnp.cos(y[0]), jnp.sin(y[0]))
    real = lambda y: y[0]
    for u in (plane, real):
        conditions = [
            pde.Dirichlet(value, 1, where=lambda key, n: x),
            pde.Data(x, jnp.asarray([2j])),
        ]
        for condition in conditions:
            np.testing.assert_allclose(at(condition, u)[1], [np.asarray(u(x[0])) - 2j], rtol=1e-15)


def test_what_cannot_work_raises_with_the_cure():
    residual = lambda u, x: u(x)
    with pytest.raises(ValueError, match=r"'k' has a default.*residual\(u, x, \*, k=...\)"):
        pde.Equation(residual=lambda u, x, k=3.0: u(x) - k, domain=BOX, solution=wave)
    with pytest.raises(ValueError, match=r"conditions=None.*must be given, or solution="):
        pde.Equation(residual=residual, domain=BOX)
    with pytest.raises(ValueError, match=r"residual must be a function"):
        pde.Equation(domain=BOX)
    with pytest.raises(ValueError, match=r"conditions=.*must be a list of conditions"):
        pde.Equation(residual=residual, domain=BOX, conditions=pde.Dirichlet(0.0, 3))
    with pytest.raises(ValueError, match=r"'border' is none"):
        small(weights={"border": 1.0})
    with pytest.raises(ValueError, match="Leave renewed= out"):
        small(adaptive=pde.ByResidual(), renewed=False)
    with pytest.raises(ValueError, match=r"pass Equation\(solution"):
        small().errors(None, BOX(KEY, 3))
    with pytest.raises(ValueError, match="evolution=True"):
        at(pde.Initial(0.0, 3), wave)
    with pytest.raises(ValueError, match=r"has no faces; pass where="):
        at(pde.Dirichlet(0.0, 3), wave, pde.Domain(None, False))
    with pytest.raises(ValueError, match=r"faces=\(\(2, 0\),\).*axis and 0"):
        at(pde.Dirichlet(0.0, 3, where=[(2, 0)]), wave)
    with pytest.raises(ValueError, match="component=0"):
        at(pde.Dirichlet(lambda x: x, 3), wave)
    with pytest.raises(ValueError, match=r"must return points of shape \(3, d\)"):
        at(pde.Dirichlet(0.0, 3, where=lambda key, n: jnp.zeros(n)), wave)
    with pytest.raises(ValueError, match="lower below upper"):
        pde.Box([0.0, 1.0], [1.0, 1.0])
    with pytest.raises(ValueError, match="one value for each of the 3 points"):
        pde.Data(jnp.ones((3, 2)), jnp.ones(2))
