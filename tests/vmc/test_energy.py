"""Energy, gradient and natural gradient against dense sums over all states."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import spins as dense
from jax.flatten_util import ravel_pytree

import pullback as pb
from pullback import vmc

SITES = 5
H = vmc.ising(vmc.Lattice((SITES,)), field=0.7)
MATRIX = dense.ising(SITES, dense.ring(SITES), 0.7)
STATES = jnp.asarray(dense.states(SITES))
PARAMS = dense.weights(SITES)
ENERGY = vmc.problem(dense.network, H)


def signed(params, spins):
    """A real wave function with negative amplitudes."""
    value = jnp.tanh(spins @ params["w"] + params["b"]) @ params["a"] + 0.1
    return jnp.log(jnp.abs(value)), jnp.sign(value)


def phased(params, spins):
    """A complex wave function of real parameters."""
    hidden = jnp.tanh(spins @ params["w"] + params["b"])
    return jax.lax.complex(hidden @ params["a"], jnp.sin(hidden @ params["a"][::-1]))


def vector(log_psi, params):
    """The amplitudes on all states."""
    made = log_psi(params, STATES)
    return made[1] * jnp.exp(made[0]) if isinstance(made, tuple) else jnp.exp(made)


def rayleigh(log_psi, params):
    psi = vector(log_psi, params)
    top = jnp.real(jnp.vdot(psi, jnp.asarray(MATRIX).astype(psi.dtype) @ psi))
    return top / jnp.real(jnp.vdot(psi, psi))


def reference(log_psi, params):
    """Energy, gradient and the real part of the quantum geometric tensor, all dense."""
    flat, unravel = ravel_pytree(params)
    value, gradient = jax.value_and_grad(lambda x: rayleigh(log_psi, unravel(x)))(flat)
    parts = lambda x: jnp.stack(
        [jnp.real(vector(log_psi, unravel(x))), jnp.imag(vector(log_psi, unravel(x)))]
    )
    psi = np.asarray(vector(log_psi, params))
    j = np.asarray(jax.jacfwd(parts)(flat))
    o = (j[0] + 1j * j[1]) / psi[:, None]
    p = np.abs(psi) ** 2 / np.sum(np.abs(psi) ** 2)
    o = o - p @ o
    return float(value), np.asarray(gradient), np.real(o.conj().T @ (p[:, None] * o))


@pytest.mark.parametrize("log_psi", [dense.network, signed], ids=["positive", "signed"])
def test_a_full_sum_is_the_dense_formula(log_psi):
    energy = vmc.problem(log_psi, H)
    batch = vmc.full_sum(energy)
    value, gradient, s = reference(log_psi, PARAMS)
    ng = pb.natural_gradient(energy, PARAMS, batch)
    np.testing.assert_allclose(ng.value, value, rtol=1e-13)
    np.testing.assert_allclose(ravel_pytree(ng.covector)[0], gradient, rtol=1e-10, atol=1e-13)
    expected = np.linalg.pinv(s, rcond=1e-12, hermitian=True) @ gradient
    np.testing.assert_allclose(ravel_pytree(ng.vector)[0], expected, rtol=1e-7)
    damped = pb.natural_gradient(energy, PARAMS, batch, inverse=pb.Tikhonov(0.01))
    expected = np.linalg.solve(s + 0.01 * np.eye(len(s)), gradient)
    np.testing.assert_allclose(ravel_pytree(damped.vector)[0], expected, rtol=1e-9)


def sampled(energy, log_q):
    """A batch of all states as if they were samples of q: local energies are data."""
    local = vmc.local_energies(energy, PARAMS, STATES)
    imaginary = jnp.imag(local) if jnp.iscomplexobj(local) else None
    from pullback.vmc._energy import Configurations, LocalEnergies

    return Configurations(STATES, log_q), LocalEnergies(jnp.real(local), imaginary)


@pytest.mark.parametrize("log_psi", [dense.network, signed], ids=["positive", "signed"])
def test_weighted_samples_of_all_states_are_the_full_sum(log_psi):
    energy = vmc.problem(log_psi, H)
    whole = pb.natural_gradient(energy, PARAMS, vmc.full_sum(energy), inverse=pb.Tikhonov(0.01))
    drawn = sampled(energy, jnp.zeros(len(STATES)))
    some = pb.natural_gradient(energy, PARAMS, drawn, inverse=pb.Tikhonov(0.01))
    np.testing.assert_allclose(some.value, whole.value, rtol=1e-13)
    for a, b in zip(*map(jax.tree.leaves, (some.vector, whole.vector)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-13)


def matrices(params, spins):
    """A matrix for each configuration, whose determinant changes its sign."""
    one, two, three = jnp.tanh(spins @ params["w"] + params["b"]).T
    return jnp.stack([one, two, three, two * three - one], axis=1).reshape(-1, 2, 2)


def turned(params, spins):
    """Complex signs."""
    log, sign = signed(params, spins)
    return log, sign * jnp.exp(1j * (spins @ params["w"])[:, 0])


def turned_twice(params, spins):
    """A complex logarithm, and signs beside it."""
    log, sign = signed(params, spins)
    return jax.lax.complex(log, (spins @ params["w"])[:, 0]), sign


@pytest.mark.parametrize("log_psi", [turned, turned_twice])
def test_signs_may_be_complex_or_beside_a_complex_logarithm(log_psi):
    energy = vmc.problem(log_psi, H)
    batch = vmc.full_sum(energy)
    with jax.numpy_dtype_promotion("standard"):
        value, gradient, _ = reference(log_psi, PARAMS)
        ng = pb.natural_gradient(energy, PARAMS, batch, inverse=pb.Tikhonov(0.01))
        local = vmc.local_energies(energy, PARAMS, STATES)
        psi = np.asarray(vector(log_psi, PARAMS))
    np.testing.assert_allclose(ng.value, value, rtol=1e-12)
    np.testing.assert_allclose(ravel_pytree(ng.covector)[0], gradient, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(local, MATRIX @ psi / psi, rtol=1e-11)


def test_slogdet_has_the_sign_first():
    log_psi = lambda params, spins: jnp.linalg.slogdet(matrices(params, spins))
    swapped = lambda params, spins: tuple(log_psi(params, spins))[::-1]
    psi = np.linalg.det(np.asarray(matrices(PARAMS, STATES)))
    assert np.any(psi > 0) and np.any(psi < 0)
    for function in (log_psi, swapped):
        energy = vmc.problem(function, H)
        found = vmc.estimate(energy, PARAMS, vmc.full_sum(energy))
        np.testing.assert_allclose(found.energy, psi @ MATRIX @ psi / (psi @ psi), rtol=1e-12)


def test_the_differential_of_a_complex_wave_function():
    """∂E/∂log|ψ| and ∂E/∂arg ψ, pulled back, are the gradient of the Rayleigh quotient."""
    energy = vmc.problem(phased, H)
    inputs, targets = sampled(energy, jnp.zeros(len(STATES)))
    value, gradient, _ = reference(phased, PARAMS)
    objective = energy.at((inputs, targets))
    np.testing.assert_allclose(objective.value(PARAMS), value, rtol=1e-13)
    found = ravel_pytree(objective.differential(PARAMS)[1])[0]
    np.testing.assert_allclose(found, gradient, rtol=1e-10, atol=1e-13)
    matrix = vmc.full_sum(energy).targets
    whole = energy.at((vmc.full_sum(energy).inputs, matrix))
    found = ravel_pytree(whole.differential(PARAMS)[1])[0]
    np.testing.assert_allclose(found, gradient, rtol=1e-10, atol=1e-13)


def test_local_energies_and_chunks():
    psi = np.asarray(vector(signed, PARAMS))
    energy = vmc.problem(signed, H)
    found = vmc.local_energies(energy, PARAMS, STATES)
    np.testing.assert_allclose(found, MATRIX @ psi / psi, rtol=1e-11)
    for chunk in (1, 7, 32, 100):
        parts = vmc.local_energies(energy, PARAMS, STATES, chunk=chunk)
        np.testing.assert_allclose(parts, found, rtol=1e-13)


def test_representatives_are_the_whole_sector():
    lattice = vmc.Lattice((8,))
    symmetries = lattice.symmetries()
    rows = jnp.asarray(symmetries.permutations)

    def invariant(params, spins):
        hidden = jnp.log(jnp.cosh(spins[:, rows] @ params["w"]))
        return jnp.sum(hidden, axis=1) @ params["a"]

    params = dense.weights(8)
    energy = vmc.problem(invariant, vmc.heisenberg(lattice))
    whole, few = vmc.full_sum(energy), vmc.full_sum(energy, symmetries)
    assert (len(whole.inputs.spins), len(few.inputs.spins)) == (70, 7)
    a, b = (pb.natural_gradient(energy, params, x, inverse=pb.Tikhonov(1e-3)) for x in (whole, few))
    np.testing.assert_allclose(a.value, b.value, rtol=1e-13)
    for x, y in zip(*map(jax.tree.leaves, (a.vector, b.vector)), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-8, atol=1e-11)
    estimates = [vmc.estimate(energy, params, batch) for batch in (whole, few)]
    np.testing.assert_allclose(*(x.energy for x in estimates), rtol=1e-13)
    np.testing.assert_allclose(*(x.variance for x in estimates), rtol=1e-11)


def test_an_eigenstate_has_no_variance():
    lowest = np.linalg.eigh(MATRIX)
    table = jnp.asarray(np.log(np.abs(lowest[1][:, 0])))
    code = lambda spins: ((1 - spins) / 2 @ (2.0 ** np.arange(SITES)[::-1])).astype(int)
    energy = vmc.problem(lambda params, spins: params[code(spins)], H)
    found = vmc.estimate(energy, table, vmc.full_sum(energy))
    np.testing.assert_allclose(found.energy, lowest[0][0], rtol=1e-13)
    assert found.variance < 1e-24 and found.error == 0


def test_the_metric_keeps_its_contract():
    z = jnp.array([0.3, -0.2, 0.9, 0.1])
    pb.testing.check_metric(vmc.Born(), z)
    pb.testing.check_metric(vmc.Born(jnp.array([1.0, 0.0, 2.0, 0.5])), z)


def test_the_divergence_is_that_of_the_states():
    """-½ log of the fidelity, with signs and phases."""
    from pullback.vmc._born import Signed

    rng = np.random.default_rng(0)
    a, b = jnp.asarray(rng.normal(size=(2, 6)))
    fidelity = lambda x, y: abs(np.vdot(x, y)) ** 2 / np.vdot(x, x).real / np.vdot(y, y).real
    found = vmc.Born().divergence(a, b)
    np.testing.assert_allclose(found, -np.log(fidelity(np.exp(a), np.exp(b))) / 2, rtol=1e-12)
    s = jnp.array([1, -1, 1, 1, -1, 1])
    found = vmc.Born().divergence(Signed(a, s), Signed(b, jnp.ones_like(s)))
    np.testing.assert_allclose(
        found, -np.log(fidelity(np.asarray(s) * np.exp(a), np.exp(b))) / 2, rtol=1e-12
    )
    pair = lambda x: jnp.stack([x, x**2], axis=1)
    psi = lambda x: np.exp(np.asarray(x) + 1j * np.asarray(x) ** 2)
    found = vmc.Born().divergence(pair(a), pair(b))
    np.testing.assert_allclose(found, -np.log(fidelity(psi(a), psi(b))) / 2, rtol=1e-12)


def test_the_ising_chain_is_solved():
    lattice = vmc.Lattice((6,))
    rows = jnp.asarray(lattice.symmetries().permutations)
    log_psi = lambda p, s: jnp.sum(jnp.log(jnp.cosh(s[:, rows] @ p["w"])) @ p["a"], axis=1)
    energy = vmc.problem(log_psi, vmc.ising(lattice, field=1.0))
    params = {"w": 0.5 * jax.random.normal(jax.random.key(1), (6, 4)), "a": jnp.full(4, 0.1)}
    opt = pb.NaturalGradientDescent(energy, step=pb.step.GridSearch(), inverse=pb.Tikhonov(1e-6))
    batch = vmc.full_sum(energy, lattice.symmetries())
    exact = -2 / np.sin(np.pi / 12)
    fit = pb.fit(opt, params, batch, 60, progress=False, until=pb.until.LossBelow(exact + 1e-9))
    np.testing.assert_allclose(vmc.estimate(energy, fit.params, batch).energy, exact, rtol=1e-9)


class Leaving(vmc.AbstractHamiltonian):
    """An operator that flips one spin, and claims to keep the magnetisation."""

    sites: int = eqx.field(static=True, default=4)
    magnetisation: int | None = eqx.field(static=True, default=0)

    def connected(self, spins):
        return spins[None].at[0, 0].multiply(-1.0), jnp.ones(1, spins.dtype)


def test_bad_input():
    with pytest.raises(ValueError, match="hamiltonian must be an operator on spins"):
        vmc.problem(dense.network, np.eye(4))
    with pytest.raises(ValueError, match="log_psi must be a function"):
        vmc.problem(3.0, H)
    plain = pb.Composite(lambda p, x: x @ p, lambda z: z)
    with pytest.raises(ValueError, match=r"a problem made by vmc\.problem"):
        vmc.full_sum(plain)
    with pytest.raises(ValueError, match="configurations of 5 sites, like the operator"):
        vmc.local_energies(ENERGY, PARAMS, jnp.ones((3, 4)))
    with pytest.raises(ValueError, match="permutations of 5 sites, like the operator"):
        vmc.full_sum(ENERGY, vmc.Lattice((4,)).symmetries())
    uneven = vmc.SpinHamiltonian(4, np.array([[0, 1]]), zz=1.0, field=1.0)
    with pytest.raises(ValueError, match="the symmetries are not those of the operator"):
        vmc.full_sum(vmc.problem(dense.network, uneven), vmc.Lattice((4,)).symmetries())
    with pytest.raises(ValueError, match="leads out of its sector of magnetisation 0"):
        vmc.full_sum(vmc.problem(dense.network, Leaving()))
    large = vmc.problem(dense.network, vmc.ising(vmc.Lattice((6, 6)), field=3.0))
    with pytest.raises(ValueError, match="Draw samples"):
        vmc.full_sum(large)
    per_site = vmc.problem(lambda p, s: s, H)
    with pytest.raises(ValueError, match="must return one number per configuration"):
        pb.natural_gradient(per_site, PARAMS, vmc.full_sum(per_site))


def test_a_wave_function_that_vanishes_is_a_failure_with_its_place():
    hole = lambda params, spins: jnp.where(
        jnp.sum(spins, axis=1) == SITES, -jnp.inf, dense.network(params, spins)
    )
    energy = vmc.problem(hole, H)
    with pytest.raises(
        Exception, match=r"an infinity.*Found in outputs \(first at index \(31,\)\)"
    ):
        pb.natural_gradient(energy, PARAMS, vmc.full_sum(energy))


@pytest.mark.parametrize("drawn", [False, True])
def test_the_natural_gradient_of_a_complex_wave_function(drawn):
    energy = vmc.problem(phased, H)
    batch = sampled(energy, jnp.zeros(len(STATES))) if drawn else vmc.full_sum(energy)
    value, gradient, s = reference(phased, PARAMS)
    found = pb.natural_gradient(energy, PARAMS, batch, inverse=pb.Tikhonov(0.01))
    np.testing.assert_allclose(found.value, value, rtol=1e-12)
    expected = np.linalg.solve(s + 0.01 * np.eye(len(s)), gradient)
    np.testing.assert_allclose(ravel_pytree(found.vector)[0], expected, rtol=1e-8)


def test_the_metric_of_a_complex_wave_function_keeps_its_contract():
    z = jnp.asarray(np.random.default_rng(0).normal(size=(5, 2)))
    pb.testing.check_metric(vmc.Born(), z)


def test_samples_of_a_complex_wave_function_do_not_see_its_phase():
    """On some of the states the mean local energy is complex; its imaginary part is noise."""
    some, log_q = np.asarray([0, 3, 3, 7, 12, 20, 21, 21, 30]), np.linspace(-1, 1, 9)

    def turned(params, spins):
        made = phased(params, spins)
        return jax.lax.complex(jnp.real(made), jnp.imag(made) + jnp.sum(params["w"]))

    flat, unravel = ravel_pytree(PARAMS)
    outputs = lambda x: phased(unravel(x), STATES[some])
    parts = lambda x: jnp.stack([jnp.real(outputs(x)), jnp.imag(outputs(x))])
    j = np.asarray(jax.jacfwd(parts)(flat))
    o, log = j[0] + 1j * j[1], np.real(outputs(flat))
    p = np.exp(2 * log - log_q)
    p = p / p.sum()
    psi = np.asarray(vector(phased, PARAMS))
    e = (MATRIX @ psi / psi)[some]
    assert abs(np.imag(p @ e)) > 1e-3
    o = o - p @ o
    s, f = np.real(o.conj().T @ (p[:, None] * o)), np.real(o.conj().T @ (p * (e - p @ e)))
    expected = np.linalg.solve(s + 0.01 * np.eye(len(s)), 2 * f)
    for log_psi in (phased, turned):
        energy = vmc.problem(log_psi, H)
        inputs, targets = sampled(energy, jnp.zeros(len(STATES)))
        inputs = inputs._replace(spins=inputs.spins[some], log_q=jnp.asarray(log_q))
        batch = (inputs, jax.tree.map(lambda x: x[some], targets))
        found = pb.natural_gradient(energy, PARAMS, batch, inverse=pb.Tikhonov(0.01))
        np.testing.assert_allclose(found.value, np.real(p @ e), rtol=1e-12)
        np.testing.assert_allclose(ravel_pytree(found.vector)[0], expected, rtol=1e-8)


def test_the_variance_where_local_energies_outgrow_their_probabilities():
    # p = exp(-800) beside local energies of exp(400).
    log_psi = lambda params, spins: params * jnp.sum(spins, axis=1)
    energy, size = vmc.problem(log_psi, H), 200.0
    found = vmc.estimate(energy, jnp.asarray(size), vmc.full_sum(energy))
    states = np.asarray(STATES)
    psi = np.exp(size * (np.sum(states, axis=1) - SITES))
    mean = psi @ MATRIX @ psi / (psi @ psi)
    rest = MATRIX @ psi - mean * psi
    np.testing.assert_allclose(found.energy, mean, rtol=1e-13)
    np.testing.assert_allclose(found.variance, rest @ rest / (psi @ psi), rtol=1e-12)


@pytest.mark.parametrize("steep", [True, False], ids=["steep", "with a node"])
def test_the_energy_where_an_amplitude_is_lost_beside_others(steep):
    """A local energy is infinite where the probability is zero, and their product is a number."""

    def log_psi(params, spins):
        if steep:
            return params * spins[:, 0] * spins[:, 1] * spins[:, 2]
        return jnp.where(jnp.sum(spins, axis=1) == SITES, -jnp.inf, params * spins[:, 0])

    energy, size = vmc.problem(log_psi, H), jnp.asarray(400.0 if steep else 0.3)
    found = vmc.estimate(energy, size, vmc.full_sum(energy))
    log = np.asarray(log_psi(size, STATES))
    psi = np.exp(log - np.max(log))
    mean = psi @ MATRIX @ psi / (psi @ psi)
    rest = MATRIX @ psi - mean * psi
    np.testing.assert_allclose(found.energy, mean, rtol=1e-12)
    np.testing.assert_allclose(found.variance, rest @ rest / (psi @ psi), rtol=1e-12)
