"""The three routes of `vmc_netket.py`: NetKet's driver, our preconditioner in it, and ours."""

import contextlib
import io
import itertools
import time
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import pullback as pb
from pullback import vmc

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        vmc.netket_preconditioner()  # raises if NetKet is missing or too old
        import netket as nk  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise SystemExit(str(error)) from None

SITES, SAMPLES, TURN = 16, 1024, 5
EXACT = -2 / np.sin(np.pi / (2 * SITES))
# The network, rate, shift.
ANSATZE = {
    "MLP": (nk.models.MLP(hidden_dims=(128, 128), hidden_activations=jnp.tanh), 0.05, 1e-3),
    "RBM": (nk.models.RBM(alpha=4, param_dtype=float), 0.05, 1e-4),
}
ROUTES = {"NetKet, VMC_SR": "#c2553a", "NetKet, our preconditioner": "#5a8f4d", "ours": "#2f6db3"}


def prepared(name, seed):
    """The operator and a state of its own for one route."""
    hilbert = nk.hilbert.Spin(0.5, SITES)
    hamiltonian = nk.operator.IsingJax(hilbert, nk.graph.Chain(SITES), h=1.0)
    sampler = nk.sampler.MetropolisLocal(hilbert, n_chains=256)
    state = nk.vqs.MCState(sampler, ANSATZE[name][0], n_samples=SAMPLES, seed=seed)
    return hamiltonian, state


def driven(driver):
    """A turn of a driver of NetKet: energies of some steps, and the parameters after them."""

    def turn():
        log = nk.logging.RuntimeLog()
        driver.run(TURN, out=log, show_progress=False)
        params = jax.block_until_ready(driver.state.parameters)
        return list(np.real(log.data["Energy"]["Mean"])), params

    return turn


def of_netket(name, seed, rate, shift):
    hamiltonian, state = prepared(name, seed)
    sgd = nk.optimizer.Sgd(rate)
    return driven(nk.driver.VMC_SR(hamiltonian, sgd, diag_shift=shift, variational_state=state))


def preconditioned(name, seed, rate, shift):
    """One argument is another one."""
    hamiltonian, state = prepared(name, seed)
    ours = vmc.netket_preconditioner(pb.Tikhonov(shift))
    sgd = nk.optimizer.Sgd(rate)
    return driven(nk.driver.VMC(hamiltonian, sgd, variational_state=state, preconditioner=ours))


def of_ours(name, seed, rate, shift):
    """A step of ours with NetKet's network, operator and sampler, compiled as a whole."""
    hamiltonian, state = prepared(name, seed)
    energy, params, sampler = vmc.from_netket(state, hamiltonian)
    opt = pb.NaturalGradientDescent(energy, step=rate, inverse=pb.Tikhonov(shift))
    carry = [params, opt.init(params), sampler.init(jax.random.key(seed), params)]

    @eqx.filter_jit
    def step(params, state, chains):
        batch, chains = sampler.draw(jax.random.key(0), params, chains)
        params, state, record = opt.step(params, state, batch)
        return (params, state, chains), record.loss

    def turn():
        losses = []
        for _ in range(TURN):
            carry[:], loss = step(*carry)
            losses.append(float(loss))
        return losses, carry[0]

    return turn


MAKERS = dict(zip(ROUTES, (of_netket, preconditioned, of_ours), strict=True))


def race(name, seed, steps, rate, shift, routes=tuple(ROUTES)):
    """The energies of each route, the CPU seconds of each turn, and the last parameters."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")  # NetKet prints what it chose, and warns
        turns = {route: MAKERS[route](name, seed, rate, shift) for route in routes}
        energies, seconds = ({route: [] for route in routes} for _ in range(2))
        last = {}
        for _ in range(steps // TURN):
            for route, turn in turns.items():
                begun = time.process_time()
                found, last[route] = turn()
                seconds[route].append((time.process_time() - begun) / TURN)
                energies[route] += found
    return energies, seconds, last


def tuned(name, steps):
    """The rate and the shift with the lowest energy over the last fifth of a run of seed 100."""
    best = {}
    for rate, shift in itertools.product((0.01, 0.02, 0.05), (1e-2, 1e-3, 1e-4)):
        energies = race(name, 100, steps, rate, shift, ("ours",))[0]["ours"]
        best[rate, shift] = float(np.mean(energies[-steps // 5 :]))
        print(f"{name}, rate {rate:g}, shift {shift:g}: {best[rate, shift] / EXACT - 1:+.2e}")
    return min(best, key=lambda pair: best[pair] if np.isfinite(best[pair]) else np.inf)
