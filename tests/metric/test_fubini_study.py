"""The Fubini-Study metric is that of scores, on the amplitudes instead of their logarithms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import distance, normal
from registry_metrics import dense

import pullback as pb
from pullback import metric as m

INPUTS, WEIGHTS = normal(12, 3), jnp.asarray(np.random.default_rng(1).uniform(0.2, 1.0, 12))


def logarithm(p, x):
    """log ψ as (modulus, phase)."""
    return jnp.tanh(x @ p["w"]) @ p["v"] + p["shift"][None]


def amplitudes(p, x):
    a, b = logarithm(p, x).T
    return jnp.stack([jnp.exp(a) * jnp.cos(b), jnp.exp(a) * jnp.sin(b)], axis=1)


PARAMS = {"w": normal(3, 5), "v": normal(5, 2, seed=1), "shift": jnp.asarray([20.0, 1.0])}


def hermitian():
    rng = np.random.default_rng(3)
    matrix = rng.normal(size=(12, 12)) + 1j * rng.normal(size=(12, 12))
    return matrix + matrix.conj().T


@pytest.mark.parametrize("weights", [jnp.ones(12), WEIGHTS], ids=["sum", "weighted"])
def test_it_is_the_quantum_geometric_tensor(weights):
    psi = np.asarray(amplitudes(PARAMS, INPUTS)) @ [1, 1j]
    rows = jax.jacobian(lambda p: amplitudes(p, INPUTS))(PARAMS)
    d = np.concatenate([np.asarray(x).reshape(12, 2, -1) for x in jax.tree.leaves(rows)], 2)
    d, w = np.einsum("ncp,c->np", d, np.asarray([1, 1j])), np.asarray(weights)
    inner = lambda a, b: np.einsum("n...,n,n...->...", a.conj(), w, b)
    n2, overlap = inner(psi, psi).real, np.einsum("n,n,np->p", psi.conj(), w, d)
    gram = np.einsum("np,n,nq->pq", d.conj(), w, d)
    expected = (gram / n2 - np.outer(overlap.conj(), overlap) / n2**2).real
    problem = pb.Composite(amplitudes, lambda z: z[:, 0], m.FubiniStudy(), pb.Weights(weights))
    assert distance(pb.pullback(problem, PARAMS, (INPUTS,)).matrix(), expected) < 1e-12
    # A factor of the state, its phase, and a factor of the weights change nothing.
    z = amplitudes(PARAMS, INPUTS)
    turned = 1e-3 * jnp.stack([z[:, 0] - 2 * z[:, 1], z[:, 1] + 2 * z[:, 0]], axis=1)
    matrix = lambda w, z: dense(m.FubiniStudy(w), z)
    v = np.asarray(normal(12, 2, seed=5)) @ [1, 1j]
    pair = lambda v: np.stack([v.real, v.imag], axis=1).ravel()
    moved = pair(1e-3 * (1 + 2j) * v)
    found = moved @ matrix(7 * weights, turned) @ moved
    np.testing.assert_allclose(found, pair(v) @ matrix(weights, z) @ pair(v), rtol=1e-10)


def test_the_same_step_as_scores_of_the_logarithm():
    """With the weights |ψ|², and without data, too."""
    h = hermitian()
    pairs = jnp.asarray(np.block([[h.real, -h.imag], [h.imag, h.real]]))

    def energy(psi):
        flat = psi.T.ravel()
        return jnp.vdot(flat, pairs @ flat) / jnp.vdot(flat, flat)

    def of_logarithm(z):
        size = jnp.exp(z[:, 0] - jnp.max(z[:, 0]))
        return energy(jnp.stack([size * jnp.cos(z[:, 1]), size * jnp.sin(z[:, 1])], axis=1))

    squares = np.sum(np.asarray(amplitudes(PARAMS, INPUTS)) ** 2, axis=1)
    born = pb.Weights(jnp.asarray(squares / squares.sum()))
    strategy = {"inverse": pb.Tikhonov(1e-3)}
    states = pb.Composite(amplitudes, energy, m.FubiniStudy(), pb.Sum())
    logarithms = pb.Composite(logarithm, of_logarithm, m.Scores(), born)
    without = pb.Composite(lambda p: amplitudes(p, INPUTS), energy, m.FubiniStudy())
    found = [
        pb.natural_gradient(states, PARAMS, (INPUTS,), **strategy),
        pb.natural_gradient(without, PARAMS, **strategy),
    ]
    expected = pb.natural_gradient(logarithms, PARAMS, (INPUTS,), **strategy)
    for ng in found:
        assert distance(ng.vector, expected.vector) < 1e-9
        assert float(ng.stats.output_share) == 1, "an energy depends on neither norm nor phase"
        assert not np.any(np.abs(np.asarray(ng.vector["shift"])) > 1e-9)


def test_norm_and_phase_alone_are_no_direction():
    turn = lambda p: jnp.exp(p[0]) * jnp.stack([jnp.cos(p[1]), jnp.sin(p[1])])
    base = normal(6, 2)

    def states(p):
        a, b = turn(p)
        return jnp.stack([a * base[:, 0] - b * base[:, 1], a * base[:, 1] + b * base[:, 0]], axis=1)

    problem = pb.Composite(states, lambda z: jnp.sum(z**2), m.FubiniStudy())
    for solver in (pb.solver.SVD(), pb.solver.Dual(), pb.solver.Primal()):
        ng = pb.natural_gradient(problem, jnp.asarray([0.3, 0.4]), solver=solver, throw=False)
        assert int(ng.stats.rank) == 0 and not np.any(ng.vector)


def test_the_divergence_is_half_of_the_negative_log_fidelity():
    z, u = normal(5, 2), normal(5, 2, seed=1)
    a, b = (np.asarray(x) @ [1, 1j] for x in (z, u))
    fidelity = abs(np.vdot(a, b)) ** 2 / np.vdot(a, a).real / np.vdot(b, b).real
    metric = m.FubiniStudy()
    np.testing.assert_allclose(metric.divergence(u, z), -np.log(fidelity) / 2, rtol=1e-12)
    tiny = np.asarray(dense(metric, z))
    v = np.asarray(normal(10, seed=2))
    moved = metric.divergence(z + 1e-9 * jnp.asarray(v).reshape(5, 2), z)
    np.testing.assert_allclose(moved, 1e-18 * v @ tiny @ v / 2, rtol=1e-6)
    first, second = jnp.asarray([1.0, 0.0]), jnp.asarray([0.0, 1.0])
    assert float(metric.divergence(first, second)) == np.inf


def test_a_state_of_norm_zero_is_refused():
    problem = pb.Composite(lambda p: 0 * p, lambda z: jnp.sum(z), m.FubiniStudy())
    with pytest.raises(Exception, match="every amplitude is zero"):
        pb.natural_gradient(problem, jnp.ones(3))


@pytest.mark.parametrize("power", [0, 1], ids=["zero", "of rank one"])
def test_a_gradient_outside_the_range_is_a_share_whether_or_not_the_metric_is_zero(power):
    """A loss that sees the norm of the state: its part along the state has no natural gradient."""
    model = lambda p: jnp.exp(p[0]) * jnp.asarray([1.0, 2.0, 3.0]) ** (1 + power * p[1])
    problem = pb.Composite(model, lambda z: jnp.sum((z - 2) ** 2), m.FubiniStudy())
    ng = pb.natural_gradient(problem, jnp.asarray([0.3, 0.7]), None)
    assert abs(float(ng.covector[0])) > 1 and float(ng.stats.output_share) < 0.9
    zero = power == 0
    assert ng.result == (pb.RESULTS.rank_zero if zero else pb.RESULTS.successful)
    assert float(ng.stats.covector_share) == 0 if zero else 0 < ng.stats.covector_share < 0.99
    assert abs(float(ng.vector[0])) < 1e-12 and bool(ng.vector[1] == 0) == zero
