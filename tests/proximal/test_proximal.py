"""The proximal family: certificates, closed forms against their optimality conditions, and the
orders between its members.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import normal

import pullback as pb

X = normal(8, 3, seed=1)
LABELS = (normal(8, seed=2) > 0).astype(float)


def logits(p, x):
    return jnp.tanh(x @ p["w"] + p["b"]) * p["v"]


PARAMS = {"w": normal(3, seed=3), "b": jnp.asarray(0.3), "v": jnp.asarray(1.2)}
FISHER = pb.Composite(logits, metric=pb.metric.Bernoulli())


def flat(tree):
    return np.asarray(jax.flatten_util.ravel_pytree(tree)[0])


def order(errors):
    """The order in 1/λ, when λ doubles, extrapolated."""
    slopes = np.diff(np.log(errors)) / np.log(0.5)
    return 2 * slopes[-1] - slopes[-2]


WEIGHTS = (400.0, 800.0, 1600.0, 3200.0)


def half_square(u, p):
    return (
        jnp.sum((jax.flatten_util.ravel_pytree(u)[0] - jax.flatten_util.ravel_pytree(p)[0]) ** 2)
        / 2
    )


def test_the_orders_between_proximal_natural_and_damped_newton_steps():
    exact, natural, newton = [], [], []
    for weight in WEIGHTS:
        step = pb.proximal_step(FISHER, PARAMS, (X, LABELS), weight=weight, rtol=1e-10)
        assert float(step.residual) <= 1e-10 and float(step.least) > 0 and int(step.steps) > 1
        exact.append(flat(step.params))
        natural.append(
            flat(pb.linearised_proximal_step(FISHER, PARAMS, (X, LABELS), weight=weight).params)
        )
        newton.append(
            flat(pb.damped_newton_step(FISHER, PARAMS, (X, LABELS), weight=weight).params)
        )
    error = lambda other: [np.linalg.norm(a - b) for a, b in zip(exact, other, strict=True)]
    # The cubic term of KL is of the order of the Hessian of the loss: expanding the loss further
    # gains no order.
    assert abs(order(error(natural)) - 2) < 0.05 and abs(order(error(newton)) - 2) < 0.05


def test_with_a_quadratic_divergence_damped_newton_is_third_order_and_implicit_is_proximal():
    plain = pb.Composite(lambda p: p, lambda z: logits_loss(z), pb.metric.Euclidean())
    exact, newton, gradient = [], [], []
    for weight in WEIGHTS:
        step = pb.proximal_step(plain, PARAMS, weight=weight / 20, rtol=1e-13)
        implicit = pb.implicit_step(plain, PARAMS, step=20 / weight, rtol=1e-13)
        assert np.allclose(flat(step.params), flat(implicit.params), rtol=1e-12)
        slope = flat(jax.grad(logits_loss)(implicit.params))
        assert np.allclose(
            flat(implicit.params), flat(PARAMS) - 20 / weight * slope, rtol=0, atol=1e-13
        )
        exact.append(flat(step.params))
        newton.append(flat(pb.damped_newton_step(plain, PARAMS, weight=weight / 20).params))
        gradient.append(
            flat(
                pb.mirror_step(
                    plain, PARAMS, weight=weight / 20, mirror=pb.EuclideanMirror()
                ).params
            )
        )
    error = lambda other: [np.linalg.norm(a - b) for a, b in zip(exact, other, strict=True)]
    assert order(error(newton)) > 2.9 and abs(order(error(gradient)) - 2) < 0.1


def logits_loss(p):
    z = logits(p, X)
    return jnp.mean(jax.nn.softplus(z) - LABELS * z)


P0 = jax.nn.softmax(normal(4, seed=5))
COST = normal(4, seed=6)
LINEAR = pb.Composite(lambda p: p, lambda z: jnp.vdot(COST, z) + jnp.sum(z**2) / 2)


@pytest.mark.parametrize(
    "mirror", [pb.KLMirror(), pb.ReverseKLMirror()], ids=lambda m: type(m).__name__
)
def test_mirror_steps_on_the_simplex_satisfy_their_optimality_conditions(mirror):
    weight = 0.7
    step = pb.mirror_step(LINEAR, P0, weight=weight, mirror=mirror)
    u, g = step.params, COST + P0
    # Stationary on the simplex: the gradient is constant over the entries.
    slope = np.asarray(g + weight * jax.grad(mirror.divergence)(u, P0))
    assert (
        np.isclose(float(jnp.sum(u)), 1.0, rtol=1e-14)
        and float(jnp.min(u)) > 0
        and np.ptp(slope) < 1e-12
    )
    off = pb.mirror_step(LINEAR, P0 + 0.1, weight=weight, mirror=mirror, throw=False)
    assert off.result == pb.RESULTS.off_simplex
    with pytest.raises(RuntimeError, match=r"not a probability vector.*Simplex"):
        pb.mirror_step(LINEAR, P0 + 0.1, weight=weight, mirror=mirror)
    edge = mirror.move(jnp.asarray([0.0, 0.25, 0.75]), jnp.asarray([-5.0, 0.0, 1000.0]))[0]
    assert float(edge[0]) == 0.0 and np.isclose(float(jnp.sum(edge)), 1.0, rtol=1e-12)


def test_a_reverse_step_does_not_rely_on_a_difference_that_is_exactly_zero():
    """Optimised, XLA computes g/λ twice with other roundings: min(g/λ - min g/λ) is not zero."""
    optimised = {
        "xla_backend_optimization_level": 3,
        "xla_llvm_disable_expensive_passes": False,
    }
    move = pb.ReverseKLMirror().move
    step = jax.jit(lambda p, g, weight: move(p, g / weight)[0], compiler_options=optimised)
    rng = np.random.default_rng(0)
    for _ in range(100):
        p, g, weight = rng.dirichlet(np.full(5, 3.0)), rng.normal(size=5), rng.uniform(0.5, 2.0)
        u = np.asarray(step(jnp.asarray(p), jnp.asarray(g), weight))
        assert np.all(u > 0) and np.isclose(np.sum(u), 1.0, rtol=1e-14)
        assert np.ptp(g / weight - p / u) < 1e-12


def test_bregman_steps_are_straight_in_the_dual_coordinates_and_have_a_range():
    theta = jnp.asarray([0.4, -1.0])
    partition = lambda s: jnp.sum(jax.nn.softplus(s))
    problem = pb.Composite(lambda p: p, lambda z: jnp.sum(jnp.sin(z)))
    closed = pb.BregmanMirror(partition, inverse=lambda mean: jnp.log(mean) - jnp.log1p(-mean))
    a = pb.mirror_step(problem, theta, weight=4.0, mirror=closed)
    b = pb.mirror_step(problem, theta, weight=4.0, mirror=pb.BregmanMirror(partition))
    c = pb.mirror_step(problem, theta, weight=4.0, mirror=pb.DivergenceMirror(closed.divergence))
    assert np.allclose(
        jax.nn.sigmoid(a.params), jax.nn.sigmoid(theta) - jnp.cos(theta) / 4, rtol=1e-14
    )
    assert np.allclose(a.params, b.params, rtol=1e-9) and np.allclose(a.params, c.params, rtol=1e-9)
    # D_φ(u, θ) of the log-partition is KL(p_θ ‖ p_u): the arguments change places.
    kl = pb.metric.Bernoulli().divergence
    assert np.isclose(closed.divergence(a.params, theta), kl(theta, a.params)) and not np.isclose(
        kl(a.params, theta), kl(theta, a.params)
    )
    with pytest.raises(RuntimeError, match="dual coordinates left their range"):
        pb.mirror_step(problem, theta, weight=0.5, mirror=closed)


def test_bad_divergences_and_inner_problems_without_a_minimum_are_named():
    shifted = lambda u, p: half_square(u, p) + 1.0
    saddle = lambda u, p: half_square(u, p) - (u["b"] - p["b"]) ** 2
    for bad in (shifted, saddle):
        step = pb.proximal_step(
            FISHER, PARAMS, (X, LABELS), weight=100.0, divergence=bad, throw=False, max_steps=5
        )
        assert step.result == pb.RESULTS.not_a_divergence
    problem = pb.Composite(lambda p: p, lambda z: -jnp.sum(z**2))
    with pytest.raises(RuntimeError, match="did not reach a minimum"):
        pb.proximal_step(problem, jnp.ones(2), weight=0.5)
    step = pb.proximal_step(problem, jnp.ones(2), weight=0.5, throw=False, max_steps=3)
    assert (
        step.result == pb.RESULTS.inner_unconverged
        and np.all(np.isfinite(step.params))
        and float(step.residual) > 0
    )
    with pytest.raises(RuntimeError, match="not positive semi-definite"):
        pb.damped_newton_step(problem, jnp.ones(2), weight=0.5)
    with pytest.raises(ValueError, match="weight must be positive"):
        pb.proximal_step(problem, jnp.ones(2), weight=0.0)


def test_gauss_newton_products():
    v = {"w": normal(3, seed=7), "b": jnp.asarray(0.1), "v": jnp.asarray(-0.4)}
    fisher = jax.jit(lambda v: pb.pullback(FISHER, PARAMS, (X, LABELS)).flat(v))(v)
    assert np.allclose(
        flat(jax.jit(lambda v: pb.generalised_gauss_newton(FISHER, PARAMS, v, (X, LABELS)))(v)),
        flat(fisher),
        rtol=1e-12,
    )
    j = jax.jacfwd(lambda p: logits(jax.flatten_util.ravel_pytree(PARAMS)[1](p), X))(
        jax.flatten_util.ravel_pytree(PARAMS)[0]
    )
    assert np.allclose(
        flat(jax.jit(lambda v: pb.gauss_newton(FISHER, PARAMS, v, (X,)))(v)),
        np.asarray(j).T @ (np.asarray(j) @ flat(v)) / 8,
        rtol=1e-12,
    )


def test_gradient_descent_on_the_outputs():
    rosenbrock = pb.Composite(
        lambda x: jnp.stack([1 - x[0], 10 * (x[1] - x[0] ** 2)]), lambda z: jnp.sum(z**2)
    )
    start = jnp.asarray([-1.2, 1.0])
    step = pb.output_step(rosenbrock, start, step=0.5)
    assert np.allclose(step.params, 1.0, atol=1e-12) and float(step.value) < 1e-25
    with pytest.raises(ValueError, match="8 outputs for 5 parameters"):
        pb.output_step(FISHER, PARAMS, (X, LABELS), step=0.1)
    square = pb.Composite(lambda x: x**2, lambda z: jnp.sum(z))
    with pytest.raises(RuntimeError, match="not invertible near the point"):
        pb.output_step(square, jnp.ones(2), step=5.0)


def test_mirror_steps_of_a_divergence_stay_exact_when_they_are_short():
    """KL near its zero is a small sum of terms of order one: its rounding must not stop the inner
    minimisation.
    """
    plain = pb.Composite(lambda p: p, loss=logits_loss)

    def divergence(u, w):
        a, b = logits(u, X), logits(w, X)
        up, down = (
            jax.nn.log_sigmoid(a) - jax.nn.log_sigmoid(b),
            jax.nn.log_sigmoid(-a) - jax.nn.log_sigmoid(-b),
        )
        return jnp.mean(jax.nn.sigmoid(a) * up + jax.nn.sigmoid(-a) * down)

    g = flat(jax.grad(logits_loss)(PARAMS))
    for weight in (1e3, 1e4, 1e5):
        u = pb.mirror_step(
            plain, PARAMS, weight=weight, mirror=pb.DivergenceMirror(divergence)
        ).params
        residual = flat(jax.grad(divergence)(u, PARAMS)) + g / weight
        assert np.linalg.norm(residual) <= 1e-8 * np.linalg.norm(g) / weight


def test_absent_samples_do_not_enter():
    """A NaN in a sample of weight zero, against the data without it."""
    weights = jnp.asarray([1.0, 0.0, 2.0, 0.5, 1.0, 1.0, 3.0, 1.0])
    present = jnp.flatnonzero(weights)
    make = lambda w: pb.Composite(logits, metric=pb.metric.Bernoulli(), measure=pb.Weights(w))
    whole, bad = make(weights), (X.at[1].set(jnp.nan), LABELS)
    part, good = make(weights[present]), (X[present], LABELS[present])
    steps = {
        "proximal": lambda *at: pb.proximal_step(*at, weight=400.0),
        "linearised": lambda *at: pb.linearised_proximal_step(*at, weight=400.0),
        "newton": lambda *at: pb.damped_newton_step(*at, weight=400.0),
        "mirror": lambda *at: pb.mirror_step(*at, weight=20.0, mirror=pb.EuclideanMirror()),
    }
    for name, step in steps.items():
        a, b = step(whole, PARAMS, bad), step(part, PARAMS, good)
        assert np.allclose(flat(a.params), flat(b.params), rtol=1e-9), name
        assert np.isclose(float(a.value), float(b.value), rtol=1e-12), name
    product = lambda problem, batch: pb.generalised_gauss_newton(problem, PARAMS, PARAMS, batch)
    assert np.allclose(flat(product(whole, bad)), flat(product(part, good)), rtol=1e-12)


def half_square_error(z, y):
    return (z - y) ** 2 / 2


@pytest.mark.parametrize(
    ("metric", "sharp"),
    [
        (pb.metric.Euclidean(), lambda c: c),
        (pb.metric.EmpiricalFisher(half_square_error), lambda c: 1 / c),
    ],
    ids=["euclidean", "empirical"],
)
def test_gradient_descent_on_the_outputs_of_samples(metric, sharp):
    """M is that of each sample, and may depend on the targets: M = c² of the empirical Fisher."""
    problem = pb.Composite(lambda p, x: x * p + p**3, half_square_error, metric)
    x, y, start = normal(4, seed=3) ** 2 + 0.5, normal(4, seed=4), normal(4, seed=2)
    step = pb.output_step(problem, start, (x, y), step=0.3)
    z = np.asarray(x * start + start**3)
    u = np.asarray(step.params)
    goal = z - 0.3 * sharp(z - np.asarray(y))
    assert np.allclose(np.asarray(x) * u + u**3, goal, rtol=0, atol=1e-11)


def test_bad_arguments_are_refused_before_anything_is_compiled():
    problem = pb.Composite(lambda p: p, lambda z: jnp.sum(z**2))
    cases = [
        (lambda: pb.implicit_step(problem, P0, step=0.0), r"implicit_step\(step=0.0\): step must"),
        (lambda: pb.damped_newton_step(problem, P0, weight=P0), r"weight must be positive"),
        (lambda: pb.linearised_proximal_step(problem, P0, weight="1"), r"weight must be positive"),
        (lambda: pb.proximal_step(problem, P0, weight=1, max_steps=1.5), r"must be an integer"),
        (lambda: pb.mirror_step(problem, P0, weight=1, mirror="kl"), r"mirror must be a mirror"),
        (lambda: pb.BregmanMirror(3), r"BregmanMirror\(phi=3\): phi must be a function"),
        (lambda: pb.DivergenceMirror(None), r"\(rho=None\): rho must be a function"),
    ]
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()
    metric = pb.metric.Riemannian(lambda z: jnp.eye(4))
    without = pb.Composite(lambda p: p, lambda z: jnp.sum(z**2), metric)
    with pytest.raises(
        ValueError, match=r"Riemannian is a metric without a divergence.*divergence="
    ):
        pb.proximal_step(without, P0, weight=1.0)


def test_a_step_prints_in_one_line_as_text_and_as_a_table():
    problem = pb.Composite(lambda p: p, lambda z: jnp.sum(z**2))
    step = pb.damped_newton_step(problem, jnp.ones(2), weight=0.5)
    assert repr(step).startswith("ProximalStep(loss 0.08, residual ") and "\n" not in repr(step)
    assert str(step).endswith("successful") and "least eigenvalue  1" in str(step)
    assert step._repr_html_().startswith("<table>")
    gradient = pb.mirror_step(problem, jnp.ones(2), weight=1.0, mirror=pb.EuclideanMirror())
    assert "nan" not in repr(gradient)
    shown = []
    jax.eval_shape(
        lambda p: shown.append(repr(pb.damped_newton_step(problem, p, weight=0.5))), jnp.ones(2)
    )
    assert shown == ["ProximalStep(loss float64[], traced)"]


def test_a_negative_eigenvalue_counts_however_small_beside_the_largest():
    # In the units of the second parameter: -1.
    unit = jnp.asarray([1.0, 1e-6])
    loss = lambda z: jnp.sum(jnp.asarray([1.0, -1.0]) * (z * unit) ** 2) / 2
    seen = pb.metric.Masked(pb.metric.Euclidean(), jnp.asarray([True, False]))
    problem, start = pb.Composite(lambda p: p, loss, seen), jnp.asarray([1.0, 1e6])
    step = pb.damped_newton_step(problem, start, weight=1.0, throw=False)
    assert step.result == pb.RESULTS.indefinite
    bowl = pb.Composite(lambda p: p, lambda z: jnp.sum((z * unit) ** 2) / 2, seen)
    step = pb.damped_newton_step(bowl, start, weight=1.0)
    assert np.allclose(step.params, [0.5, 0.0], rtol=1e-12, atol=1e-6)


def test_an_output_step_moves_small_outputs_beside_large_ones():
    large = jnp.asarray([1e15, 1.0, 1e-15])
    loss = lambda z, y: jnp.sum((z - y) ** 2) / 2
    problem = pb.Composite(lambda p: p * large, loss)
    goal = large * jnp.asarray([1.0, 0.0, 0.0])
    step = pb.output_step(problem, jnp.ones(3), (None, goal), step=0.5)
    assert np.allclose(step.params, [1.0, 0.5, 0.5], rtol=1e-12)


def test_an_output_step_has_no_place_for_absent_samples():
    loss = lambda z, y: (z - y) ** 2 / 2
    measure = pb.Weights(jnp.asarray([1.0, 0.0]))
    problem = pb.Composite(lambda p, x: p * x, loss, measure=measure)
    with pytest.raises(ValueError, match=r"weight zero .* no place in a step on the outputs"):
        pb.output_step(problem, jnp.ones(2), (jnp.ones(2), jnp.zeros(2)), step=0.5)


def test_an_inverse_that_inverts_another_function_is_refused():
    problem = pb.Composite(lambda p, x: x @ p, lambda z, y: (z - y) ** 2 / 2)
    start, batch = normal(3, seed=5), (X, LABELS)
    phi = lambda u: jnp.sum(jnp.exp(u))
    true = pb.mirror_step(
        problem, start, batch, weight=9.0, mirror=pb.BregmanMirror(phi, inverse=jnp.log)
    )
    slope = jax.grad(lambda p: jnp.mean((X @ p - LABELS) ** 2) / 2)(start)
    assert np.allclose(jnp.exp(true.params), jnp.exp(start) - slope / 9, rtol=1e-12)
    for wrong in (lambda dual: dual, lambda dual: jnp.log(dual) + 1e-4):
        mirror = pb.BregmanMirror(phi, inverse=wrong)
        step = pb.mirror_step(problem, start, batch, weight=9.0, mirror=mirror, throw=False)
        assert step.result == pb.RESULTS.not_inverse_of_phi


def test_a_damped_newton_step_of_a_model_that_mixes_samples_needs_the_declaration():
    model = lambda p, x: (x - jnp.mean(x, axis=0, keepdims=True) * p[0]) @ p
    loss = lambda z, y: (z - y) ** 2 / 2
    start, batch = jnp.asarray([1.0, 0.5, -0.5]), (X, LABELS)
    step = lambda problem: pb.damped_newton_step(problem, start, batch, weight=1e3, throw=False)
    assert step(pb.Composite(model, loss)).result == pb.RESULTS.coupled_samples
    found = step(pb.Composite(model, loss, coupled=True))
    j = np.asarray(jax.jacobian(model)(start, X))
    whole = lambda p: jnp.mean((model(p, X) - LABELS) ** 2) / 2
    matrix = np.asarray(jax.hessian(whole)(start)) + 1e3 * j.T @ j / len(X)
    wanted = start - np.linalg.solve(matrix, jax.grad(whole)(start))
    assert found.result == pb.RESULTS.successful and np.allclose(found.params, wanted, rtol=1e-10)
