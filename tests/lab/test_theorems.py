"""The theorems hold on cases small enough to do by hand."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pullback as pb
from pullback_lab.papers._inverses import asymmetry, projector, random_inverse
from pullback_lab.papers._numbers import distance
from pullback_lab.papers.invariance import minimum_norm, theorem_1, theorem_2
from pullback_lab.papers.lecture import bregman, gaussian, rosenbrock
from pullback_lab.papers.ours._entropy import entropy, project


def close(a, b, atol=1e-13):
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=0, atol=atol)


# ---- Lemma 1 and Theorem 1 ----


def test_lemma_1_by_hand(rng):
    """Three copies of one vector, (1, 2) in the inner product diag(1, 1/4): Π(v) for ω = (3, 1) is
    ω(e)/<e, e> e = 5/2 (1, 2).
    """
    e, inner, omega = (
        np.array([[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]]),
        np.diag([1.0, 0.25]),
        np.array([3.0, 1.0]),
    )
    g = e.T @ inner @ e
    close(g, np.full((3, 3), 2.0))
    close(projector(e, inner, 1) @ np.linalg.solve(inner, omega), [2.5, 5.0])
    for _ in range(20):
        x = random_inverse(rng, g)
        close(g @ x @ g, g, 1e-12)
        assert asymmetry(x) > 0.05
        close(e @ (x @ (e.T @ omega)), [2.5, 5.0], 1e-12)


def test_random_inverses_reach_all_of_them(rng):
    """The set of {1}-inverses of a matrix of rank r is affine, of dimension d² - r²."""
    g = np.diag([1.0, 2.0, 0.0])
    draws = np.stack([random_inverse(rng, g).ravel() for _ in range(20)])
    assert np.linalg.matrix_rank(draws - draws[0], tol=1e-10) == 9 - 4


def test_theorem_1_by_hand():
    """A line along (1, 1) in the metric diag(1, 4), dL = (2, 4): g = 6, G = 5, and the motion is
    6/5 (1, 1); Euclidean it is 3 (1, 1).
    """
    model, loss = lambda t: jnp.concatenate([t, t]), lambda z: 2 * z[0] + 4 * z[1]
    metric = pb.metric.Riemannian(lambda z: jnp.diag(jnp.array([1.0, 4.0])))
    close(
        pb.natural_gradient(
            pb.Composite(model, loss=loss, metric=metric), jnp.zeros(1)
        ).pushforward,
        [1.2, 1.2],
    )
    close(pb.natural_gradient(pb.Composite(model, loss=loss), jnp.zeros(1)).pushforward, [3.0, 3.0])
    close(
        pb.pullback(pb.Composite(model, loss=loss, metric=metric), jnp.zeros(1)).project(
            jnp.array([2.0, 1.0])
        ),
        [1.2, 1.2],
    )


def test_theorem_1_is_tested_where_the_rank_falls():
    jacobians = [
        np.asarray(jax.jacfwd(theorem_1.phi)(jnp.asarray(xi))) for xi, _ in theorem_1.points()
    ]
    assert (
        [np.linalg.matrix_rank(j) for j in jacobians]
        == [rank for _, rank in theorem_1.points()]
        == [3, 3, 3, 3, 3, 2]
    )


# ---- Theorem 2 ----


def test_theorem_2_diffeomorphisms_are_nonlinear_and_go_where_they_should(rng):
    theta, xi = rng.standard_normal(6), rng.standard_normal(6)
    for bend, is_affine in ((0.0, True), (0.8, False)):
        f = theorem_2.diffeomorphism(rng, theta, xi, bend)
        close(f(jnp.asarray(theta)), xi)
        tangents = [np.asarray(jax.jacfwd(f)(jnp.asarray(t))) for t in (theta, 2 * theta)]
        assert (distance(*tangents) < 1e-12) == is_affine
        assert min(abs(np.linalg.det(t)) for t in tangents) > 1e-4


def test_theorem_2_on_the_parameters_by_hand():
    """Appendix A.3: (3, 3) and (2.4, 1.2), which is (4.8, 1.2) in the old parameters; both move the
    model by (6, 0).
    """
    old = pb.natural_gradient(
        pb.Composite(minimum_norm.phi, loss=minimum_norm.loss), jnp.array([2.0, 1.0])
    )
    new = pb.natural_gradient(
        pb.Composite(minimum_norm.psi, loss=minimum_norm.loss), jnp.array([1.0, 1.0])
    )
    close(old.vector, [3.0, 3.0])
    close(new.vector, [2.4, 1.2])
    close(minimum_norm.TANGENT @ np.asarray(new.vector), [4.8, 1.2])
    close(old.pushforward, [6.0, 0.0])
    close(new.pushforward, [6.0, 0.0])


def test_theorem_2_remark_2_by_hand():
    """In the gauge W = diag(1/4, 1) the solution of y₁ + y₂ = 6 of least norm is (4.8, 1.2)."""
    problem, gauge = (
        pb.Composite(minimum_norm.phi, loss=minimum_norm.loss),
        jnp.array([[0.25, 0.0], [0.0, 1.0]]),
    )
    close(
        pb.natural_gradient(
            problem, jnp.array([2.0, 1.0]), inverse=pb.MoorePenrose(gauge=gauge)
        ).vector,
        [4.8, 1.2],
    )
    close(
        theorem_2.least(np.diag([0.5, 1.0]), np.ones((2, 2)), np.array([6.0, 6.0]), 1), [4.8, 1.2]
    )


# ---- The others ----


def test_tikhonov_theorem_by_hand():
    """G = diag(1, 0), g = (1, 1): the damped inverse gives (1/(1 + λ), 1/λ), the Moore-Penrose
    inverse (1, 0).
    """
    metric = pb.pullback(
        pb.Composite(lambda x: x * jnp.array([1.0, 0.0]), loss=jnp.sum), jnp.zeros(2)
    )
    close(metric.sharp(jnp.ones(2)), [1.0, 0.0])
    for damping in (1e-2, 1e-6):
        np.testing.assert_allclose(
            metric.sharp(jnp.ones(2), pb.Tikhonov(damping)),
            [1 / (1 + damping), 1 / damping],
            rtol=1e-14,
        )


def test_rosenbrock_values():
    np.testing.assert_allclose(
        rosenbrock.descend(0.5, 2), [24.2, 2342.56, 0.0], rtol=1e-12, atol=1e-20
    )
    np.testing.assert_allclose(
        rosenbrock.descend(1.0, 4), [24.2, 35801.48, 24.2, 35801.48, 24.2], rtol=1e-10
    )


@pytest.mark.parametrize("name", gaussian.SYSTEMS)
def test_gaussian_coordinates_are_inverse_to_each_other(name):
    system, point = gaussian.SYSTEMS[name], jnp.array([0.7, 0.3])
    close(system.read(system.write(point)), point)


def test_gaussian_fisher_at_the_standard_normal():
    """Known numbers: diag(1, 2), diag(1, 1/2), diag(1, 2), diag(1, 2)."""
    seconds = {"(μ, σ)": 2.0, "(μ, σ²)": 0.5, "(μ, log σ)": 2.0, "natural": 2.0}
    for name, system in gaussian.SYSTEMS.items():
        close(gaussian.pulled_back(system, system, jnp.zeros(2)), np.diag([1.0, seconds[name]]))
        close(gaussian.scores_moments(system, jnp.zeros(2))[1], np.diag([1.0, seconds[name]]))


def test_bregman_of_two_coins():
    """logsumexp(z, 0) of a fair and a 3:1 coin: KL(fair || 3:1) = log(2/√3), KL(3:1 || fair) = log
    2 + 3/4 log 3/4 + 1/4 log 1/4.
    """
    fair, biased = jnp.zeros(2), jnp.array([jnp.log(3.0), 0.0])
    close(pb.metric.Bregman(jax.nn.logsumexp).divergence(biased, fair), np.log(2 / np.sqrt(3)))
    close(pb.metric.Categorical().divergence(fair, biased), np.log(2 / np.sqrt(3)))
    close(
        pb.metric.Categorical().divergence(biased, fair),
        np.log(2) + 0.75 * np.log(0.75) + 0.25 * np.log(0.25),
    )
    assert bregman.kl(np.array([0.5, 0.5]), np.array([0.75, 0.25])) == pytest.approx(
        np.log(2 / np.sqrt(3))
    )


def test_the_bregman_projection_from_far_away():
    """Coefficients over decades, a start that is far off: the norm of the gradient of ψ falls
    towards infinity too, and a search that follows it never comes back.
    """
    for depth, seed in itertools.product((2, 3, 4), (0, 3, 7)):
        rng = np.random.default_rng(seed)
        weights = 0.5 * rng.standard_normal((depth, 12))
        psi = entropy(weights)
        start = weights.prod(axis=0)
        layer = psi.layer(start) + rng.standard_normal(12) * 10 ** rng.uniform(-3, 1.5, 12)
        end = layer * np.sqrt(np.prod(layer**2 + psi.mu, axis=0))
        x = rng.standard_normal((4, 12))
        x[0] = psi.gradient(end) - psi.gradient(start)  # so that the projection is this end
        assert distance(project(psi, x, x @ end, start), end) <= 1e-10
