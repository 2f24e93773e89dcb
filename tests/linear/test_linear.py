"""Logistic regression and diagonal networks in closed form, against dense references, integrated
flows and many digits.
"""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import scipy.integrate
import scipy.optimize

from pullback import linear

LOGISTIC = linear.Logistic()


def sigmoid(u):
    return 0.5 * (1 + np.tanh(u / 2))


def data(rng, n, d, rank=None):
    x = (
        rng.standard_normal((n, d))
        if rank is None
        else rng.standard_normal((n, rank)) @ rng.standard_normal((rank, d))
    )
    return x, rng.choice([-1.0, 1.0], n)


def separable(rng, n, d):
    x = rng.standard_normal((n, d))
    return x, np.sign(x @ rng.standard_normal(d))


def dense(x, y, beta):
    """(gradient, Fisher matrix), as on paper."""
    u = y * (x @ beta)
    return -(y[:, None] * x).T @ sigmoid(-u), (x.T * (sigmoid(u) * sigmoid(-u))) @ x


def relative(a, b):
    return float(np.linalg.norm(np.asarray(a) - b) / np.linalg.norm(b))


def test_loss_gradient_and_fisher(rng):
    x, y = data(rng, 7, 4)
    beta = rng.standard_normal(4)
    u = y * (x @ beta)
    assert np.isclose(LOGISTIC.loss(beta, x, y), np.sum(np.log1p(np.exp(-u))))
    g, f = dense(x, y, beta)
    assert relative(LOGISTIC.gradient(beta, x, y), g) < 1e-14
    assert relative(LOGISTIC.fisher(beta, x), f) < 1e-14
    assert relative(jax.grad(LOGISTIC.loss)(jnp.asarray(beta), x, y), g) < 1e-13


@pytest.mark.parametrize(
    ("n", "d", "rank"), [(4, 9, None), (9, 4, None), (5, 5, None), (9, 6, 3), (5, 9, 3), (6, 6, 2)]
)
def test_natural_gradient_is_the_moore_penrose_one(rng, n, d, rank):
    x, y = data(rng, n, d, rank)
    beta = rng.standard_normal(d) / 2
    g, f = dense(x, y, beta)
    expected = np.linalg.pinv(f, rcond=1e-10) @ g
    assert relative(LOGISTIC.natural_gradient(beta, x, y), expected) < 1e-9
    assert relative(jax.jit(LOGISTIC.natural_gradient)(beta, x, y), expected) < 1e-9


def exact_natural_gradient(x, y, u):
    """Normal equations in two thousand digits, at given margins u; rows of full column rank, or of
    full row rank.
    """
    with mpmath.workdps(4000):
        signed = mpmath.matrix((y[:, None] * x).tolist())
        w = [
            1 / ((1 + mpmath.exp(-mpmath.mpf(float(v)))) * (1 + mpmath.exp(mpmath.mpf(float(v)))))
            for v in u
        ]
        b = mpmath.matrix([-(1 + mpmath.exp(-mpmath.mpf(float(v)))) for v in u])
        if x.shape[0] <= x.shape[1]:
            d = signed.T * mpmath.lu_solve(signed * signed.T, b)
        else:
            weighted = signed.T * mpmath.diag(w)
            d = mpmath.lu_solve(weighted * signed, weighted * b)
        return np.array([float(v) for v in d])


SPREADS = {
    "offset": (720, 725),
    "wide": (98, 350),
    "very wide": (30, 1200),
    "past the exponents": (0, 6000),
    "both signs": (-40, 300),
}


@pytest.mark.parametrize("spread", SPREADS.values(), ids=SPREADS)
@pytest.mark.parametrize(("n", "d"), [(9, 4), (3, 7)])
def test_natural_gradient_at_any_spread_of_the_logits(rng, n, d, spread):
    from pullback.linear._population import log_fisher
    from pullback.linear._weighted import least_squares

    x, y = data(rng, n, d)
    u = np.sort(rng.uniform(*spread, n))
    ours = least_squares(
        y[:, None] * x, log_fisher(jnp.asarray(u)), jax.nn.softplus(-jnp.asarray(u)), -jnp.ones(n)
    )
    assert relative(ours, exact_natural_gradient(x, y, u)) < 1e-13


def test_a_large_coefficient_vector(rng):
    """The same through the public call: logits of some hundreds, of which the normal equations keep
    nothing.
    """
    x, y = separable(rng, 12, 3)
    v = np.asarray(linear.l2_margin(x, y))
    beta = 200 * v
    u = y * (x @ beta)
    assert relative(LOGISTIC.natural_gradient(beta, x, y), exact_natural_gradient(x, y, u)) < 1e-11
    g, f = dense(x, y, beta)
    assert not relative(np.linalg.pinv(f) @ g, exact_natural_gradient(x, y, u)) < 0.1


def integrated(x, y, beta, t):
    def field(_, b):
        g, f = dense(x, y, b)
        return -np.linalg.pinv(f, rcond=1e-11) @ g

    return scipy.integrate.solve_ivp(field, (0, t), beta, rtol=1e-11, atol=1e-12).y[:, -1]


@pytest.mark.parametrize(("n", "d"), [(4, 7), (9, 4)])
def test_flow_against_an_integrated_flow(rng, n, d):
    x, y = separable(rng, n, d)
    beta = rng.standard_normal(d) / 3
    assert relative(LOGISTIC.flow(beta, x, y, 2.5), integrated(x, y, beta, 2.5)) < 1e-8
    assert relative(LOGISTIC.flow(beta, x, y, 0.0), beta) < 1e-13


@pytest.mark.parametrize("t", [1.0, 15.0, 120.0])
@pytest.mark.parametrize("separates", [True, False])
def test_the_gradient_decays_exponentially_along_the_flow(rng, t, separates):
    x, y = separable(rng, 15, 4)
    if not separates:
        y = y * rng.choice([-1, 1], 15)
    beta = rng.standard_normal(4)
    there = LOGISTIC.flow(beta, x, y, t)
    gradient = np.asarray(LOGISTIC.gradient(there, x, y)) * np.exp(t)
    # Not separable: the gradient is a difference of numbers of order one, known to rounding only.
    bound = 1e-9 if separates else 1e-9 + 1e-14 * np.exp(t)
    assert relative(gradient, np.asarray(LOGISTIC.gradient(beta, x, y))) < bound


def test_flow_transforms_with_the_data(rng):
    x, y = separable(rng, 12, 4)
    a, beta = rng.standard_normal((4, 4)), rng.standard_normal(4)
    there = LOGISTIC.flow(beta, x, y, 9.0)
    moved = LOGISTIC.flow(np.linalg.solve(a.T, beta), x @ a.T, y, 9.0)
    assert relative(a.T @ np.asarray(moved), np.asarray(there)) < 1e-9


def test_limit_direction_with_independent_rows_is_least_squares(rng):
    x, y = separable(rng, 5, 9)
    expected = np.linalg.pinv(x) @ y
    assert relative(LOGISTIC.limit_direction(x, y), expected) < 1e-12
    there = np.asarray(LOGISTIC.flow(np.zeros(9), x, y, 200.0))
    assert relative(there / np.linalg.norm(there), expected / np.linalg.norm(expected)) < 1e-12
    assert relative(there / (200 + np.log(2)), expected) < 1e-12


def test_limit_direction_is_the_linear_program(rng):
    x, y = separable(rng, 14, 3)
    beta = rng.standard_normal(3)
    v = np.asarray(LOGISTIC.limit_direction(x, y, beta))
    assert np.min(y * (x @ v)) > 1 - 1e-9
    errors = [
        relative(np.asarray(LOGISTIC.flow(beta, x, y, t)) / t, v) for t in (50.0, 100.0, 200.0)
    ]
    orders = np.log2(np.array(errors[:-1]) / errors[1:])
    assert np.all(np.abs(orders - 1) < 0.05), errors


def test_no_limit_direction_without_separation(rng):
    x, y = data(rng, 40, 2)
    with pytest.raises(ValueError, match="separates"):
        LOGISTIC.limit_direction(x, y)


@pytest.mark.parametrize("norm", [0.0, 0.3, 3.0, 50.0, 4e3])
def test_population_fisher_of_standard_normal_inputs(norm):
    beta = norm * np.array([0.6, 0.0, -0.8])
    density = lambda z: (
        sigmoid(norm * z) * sigmoid(-norm * z) * np.exp(-z * z / 2) / np.sqrt(2 * np.pi)
    )
    near = 40 / max(norm, 1)
    integral = lambda f: (
        2
        * sum(
            scipy.integrate.quad(f, *ends, epsabs=0, epsrel=1e-12)[0]
            for ends in ((0, near), (near, near + 20))
        )
    )
    a, c = integral(density), integral(lambda z: z * z * density(z))
    b = np.array([0.6, 0.0, -0.8])
    expected = a * np.eye(3) + (c - a) * (np.outer(b, b) if norm else 0)
    assert relative(LOGISTIC.population_fisher(beta), expected) < 1e-11


def test_population_natural_gradient(rng):
    x, y = data(rng, 5, 3)
    beta, inputs = rng.standard_normal(3), rng.standard_normal((400_000, 3))
    exact = np.asarray(LOGISTIC.population_natural_gradient(beta, x, y))
    g, _ = dense(x, y, beta)
    assert relative(5 * np.asarray(LOGISTIC.population_fisher(beta)) @ exact, g) < 1e-12
    sampled = LOGISTIC.population_natural_gradient(beta, x, y, inputs)
    assert relative(sampled, exact) < 0.01
    _, f = dense(inputs, np.ones(len(inputs)), beta)
    assert relative(sampled, np.linalg.solve(f * 5 / len(inputs), g)) < 1e-11


# Diagonal networks


def jacobian(weights):
    """∂β/∂w for weights (L, D), flattened layer by layer."""
    layers = [np.diag(np.prod(np.delete(weights, l, axis=0), axis=0)) for l in range(len(weights))]
    return np.hstack(layers)


ZEROS = {"regular": (), "one zero": ((0, 1),), "two zeros": ((0, 1), (1, 1))}


@pytest.mark.parametrize("zeros", ZEROS.values(), ids=ZEROS)
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize(("n", "d"), [(3, 6), (8, 4)])
def test_diagonal_natural_gradient_is_the_moore_penrose_one(rng, depth, n, d, zeros):
    x, y = data(rng, n, d)
    weights = rng.standard_normal((depth, d))
    for place in zeros:
        if place[0] < depth:
            weights[place] = 0.0
    network, j = linear.Diagonal(depth), jacobian(weights)
    g, f = dense(x, y, np.prod(weights, axis=0))
    expected = np.linalg.pinv(j.T @ f @ j, rcond=1e-11) @ (j.T @ g)
    assert relative(np.ravel(network.natural_gradient(weights, x, y)), expected) < 1e-8
    assert relative(np.ravel(network.gradient(weights, x, y)), j.T @ g) < 1e-12


def test_the_lift_is_the_closed_form_where_the_fisher_matrix_is_regular(rng):
    x, y = data(rng, 9, 4)
    weights = rng.standard_normal((3, 4))
    network = linear.Diagonal(3)
    d_beta = LOGISTIC.natural_gradient(network.product(weights), x, y)
    assert (
        relative(network.lift(weights, d_beta), np.asarray(network.natural_gradient(weights, x, y)))
        < 1e-10
    )
    vector = rng.standard_normal(4)
    assert (
        relative(
            np.ravel(network.lift(weights, vector)), np.linalg.pinv(jacobian(weights)) @ vector
        )
        < 1e-13
    )
    tiny = network.lift(1e-120 * weights, vector)
    assert (
        relative(
            np.sum(np.asarray(network.cofactors(1e-120 * weights)) * np.asarray(tiny), axis=0),
            vector,
        )
        < 1e-12
    )


def test_flow_of_depth_2_is_a_projection_in_the_hyperbolic_entropy(rng):
    x, y = data(rng, 3, 6)
    weights = 0.4 * rng.standard_normal((2, 6))

    def field(_, flat):
        w = flat.reshape(2, 6)
        g, f = dense(x, y, np.prod(w, axis=0))
        j = jacobian(w)
        return -np.linalg.pinv(j.T @ f @ j, rcond=1e-12) @ (j.T @ g)

    end = (
        scipy.integrate.solve_ivp(field, (0, 4.0), weights.ravel(), rtol=1e-10, atol=1e-12)
        .y[:, -1]
        .reshape(2, 6)
    )
    ours = linear.Diagonal(2).flow(weights, x, y, 4.0)
    assert relative(ours, np.prod(end, axis=0)) < 1e-6
    assert relative(ours, np.asarray(LOGISTIC.flow(np.prod(weights, axis=0), x, y, 4.0))) > 0.05


def test_from_small_weights_depth_2_tends_to_the_least_l1_interpolant(rng):
    x, y = data(rng, 4, 12)
    least = np.asarray(linear.l1_interpolant(x, y))
    assert np.allclose(x @ least, y)
    assert np.count_nonzero(np.abs(least) > 1e-9) <= 4
    cosine = lambda a: float(a @ least / np.linalg.norm(a) / np.linalg.norm(least))
    found = [
        cosine(np.asarray(linear.hyperbolic_projection(x, 40 * y, np.zeros(12), np.full(12, k))))
        for k in (1e-1, 1e-4, 1e-30)
    ]
    assert found == sorted(found)
    assert found[-1] > 1 - 1e-6
    assert cosine(np.asarray(linear.l2_interpolant(x, y))) < 0.95


# References


def test_l2_margin(rng):
    x, y = separable(rng, 12, 4)
    ours = np.asarray(linear.l2_margin(x, y))
    constraint = {"type": "ineq", "fun": lambda b: y * (x @ b) - 1}
    found = scipy.optimize.minimize(
        lambda b: b @ b / 2,
        2 * ours,
        jac=lambda b: b,
        constraints=constraint,
        method="SLSQP",
        tol=1e-14,
    )
    assert relative(ours, found.x) < 1e-6
    assert np.min(y * (x @ ours)) > 1 - 1e-10


def vertices(x, y):
    """All points where as many of the constraints and coordinate planes as there are coordinates
    meet, that are feasible.
    """
    import itertools

    rows = np.vstack([y[:, None] * x, np.eye(x.shape[1])])
    sides = np.append(np.ones(len(x)), np.zeros(x.shape[1]))
    for chosen in itertools.combinations(range(len(rows)), x.shape[1]):
        a = rows[list(chosen)]
        if abs(np.linalg.det(a)) > 1e-9:
            v = np.linalg.solve(a, sides[list(chosen)])
            if np.min(y * (x @ v)) > 1 - 1e-9:
                yield v


@pytest.mark.parametrize("p", [1.0, 2 / 3, 0.5])
def test_l1_and_lp_margins_against_all_vertices(rng, p):
    x, y = separable(rng, 8, 3)
    norm = lambda b: np.sum(np.abs(b) ** p)
    best = min(norm(v) for v in vertices(x, y))
    ours = np.asarray(linear.l1_margin(x, y) if p == 1 else linear.lp_margin(x, y, p))
    assert np.min(y * (x @ ours)) > 1 - 1e-9
    assert norm(ours) < best * (1 + 1e-6)


@pytest.mark.parametrize(
    "margin", [linear.l2_margin, linear.l1_margin, lambda x, y: linear.lp_margin(x, y, 0.5)]
)
def test_margins_need_separation(rng, margin):
    x, y = data(rng, 40, 2)
    with pytest.raises(ValueError, match="separates"):
        margin(x, y)


# Bad input

X, Y = np.eye(3), np.array([1.0, -1.0, 1.0])
BAD = {
    "shape of x": (
        lambda: LOGISTIC.loss(np.zeros(3), np.ones(3), Y),
        r"Logistic\.loss\(x=.*\): x must be an array with 2 axes, not of shape \(3,\)",
    ),
    "shape of beta": (
        lambda: LOGISTIC.loss(np.zeros(2), X, Y),
        r"beta must be of shape \(3,\), one coefficient per column of x, not \(2,\)",
    ),
    "number of labels": (
        lambda: LOGISTIC.loss(np.zeros(3), X, Y[:2]),
        r"y must be of shape \(3,\), one label per row",
    ),
    "labels 0 and 1": (
        lambda: LOGISTIC.natural_gradient(np.zeros(3), X, np.array([0, 1, 1])),
        r"2 \* y - 1",
    ),
    "nan in x": (
        lambda: LOGISTIC.gradient(np.zeros(3), np.where(X == 1, np.nan, X), Y),
        r"x must be finite, but x\[0, 0\] is not",
    ),
    "no samples": (
        lambda: LOGISTIC.flow(np.zeros(3), np.zeros((0, 3)), np.zeros(0), 1.0),
        "x must be not empty",
    ),
    "complex": (lambda: LOGISTIC.loss(np.zeros(3), 1j * X, Y), "x must be real, not complex"),
    "negative time": (
        lambda: LOGISTIC.flow(np.zeros(3), X, Y, -1.0),
        r"Logistic\.flow\(t=-1\.0\): t must be finite and >= 0, e\.g\. Logistic\(\)\.flow",
    ),
    "infinite time": (lambda: LOGISTIC.flow(np.zeros(3), X, Y, np.inf), "limit_direction"),
    "few inputs": (
        lambda: LOGISTIC.population_natural_gradient(np.zeros(3), X, Y, X[:2]),
        "draw more",
    ),
    "depth 0": (
        lambda: linear.Diagonal(0),
        r"Diagonal\(depth=0\): depth must be an integer of at least 1, e\.g\. Diagonal\(depth=2\)",
    ),
    "depth 1.5": (lambda: linear.Diagonal(1.5), "depth must be an integer"),
    "layers": (lambda: linear.Diagonal(2).product(np.ones((3, 3))), r"\(2, D\)"),
    "flow of depth 3": (lambda: linear.Diagonal(3).flow(np.ones((3, 3)), X, Y, 1.0), "depth 2"),
    "balanced": (
        lambda: linear.Diagonal(2).flow(np.ones((2, 3)), X, Y, 1.0),
        "kappa must be positive",
    ),
    "p": (
        lambda: linear.lp_margin(X, Y, 1.5),
        r"lp_margin\(p=1\.5\): p must be in \(0, 1\].*l2_margin",
    ),
    "starts": (
        lambda: linear.lp_margin(X, Y, 0.5, starts=0),
        r"lp_margin\(starts=0\): starts must be an integer of at least 1",
    ),
    "length of a vector": (
        lambda: linear.Diagonal(2).lift(np.ones((2, 3)), np.ones(2)),
        r"Diagonal\.lift\(vector=.*\(3,\), one entry per column of weights, not \(2,\)",
    ),
    "start of the limit": (
        lambda: LOGISTIC.limit_direction(X, Y, np.zeros(2)),
        "one coefficient per column of x",
    ),
    "target": (
        lambda: linear.l2_interpolant(X, np.zeros(2)),
        r"l2_interpolant\(target=.*one per row of x",
    ),
    "no interpolant": (
        lambda: linear.l1_interpolant(np.ones((2, 3)), np.array([0.0, 1.0])),
        "dependent",
    ),
}


@pytest.mark.parametrize(("call", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
