"""NetKet's `VMC_SR` beside our natural gradient: same ansatz, same samples, same seeds, one run.

`python examples/vmc_netket.py` takes the Ising chain of 16 spins at h = 1 with two networks of
NetKet, and saves pictures/vmc_netket.png. It needs NetKet: pip install 'pullback[netket]'. Options:
`--steps=100`, `--seeds=1`, `--only=MLP,RBM`, `--tune` (tries rates and shifts first).

All three routes take the same steps, so that what is best for one is best for all. `--tune` chose
the rate and the shift of the RBM; those of the MLP are near. The routes take turns on one core, and
the CPU time of a turn counts.
"""

import contextlib
import io
import itertools
import os
import sys
import time
import warnings

# One core, before JAX counts them: a ratio of times of one thread each.
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from _pictures import picture_path
from jax.flatten_util import ravel_pytree

import pullback as pb
from pullback import vmc

jax.config.update("jax_enable_x64", True)
matplotlib.use("Agg")
try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import netket as nk  # pyright: ignore[reportMissingImports]
except ImportError:
    raise SystemExit("This example needs NetKet: pip install 'pullback[netket]'.") from None

SITES, SAMPLES, TURN = 16, 1024, 5
EXACT = -2 / np.sin(np.pi / (2 * SITES))
# The network, rate, shift.
ANSATZE = {
    "MLP": (nk.models.MLP(hidden_dims=(128, 128), hidden_activations=jnp.tanh), 0.05, 1e-3),
    "RBM": (nk.models.RBM(alpha=4, param_dtype=float), 0.05, 1e-4),
}
ROUTES = {"NetKet, VMC_SR": "#c2553a", "NetKet, our preconditioner": "#5a8f4d", "ours": "#2f6db3"}


def option(name, default):
    """The value of an option `--name=value`."""
    found = [word.split("=", 1)[1] for word in sys.argv[1:] if word.startswith(f"--{name}=")]
    return found[0] if found else default


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


def report(name, runs):
    """Print what each route reached, its time, and how far the parameters are apart."""
    flat = lambda tree: np.asarray(ravel_pytree(tree)[0])
    theirs = next(iter(ROUTES))
    # The first turn compiles.
    least = {r: min(min(seconds[r][1:]) for _, seconds, _ in runs) for r in ROUTES}
    for route in ROUTES:
        ends = [np.mean(energies[route][-20:]) / EXACT - 1 for energies, _, _ in runs]
        apart = max(
            np.linalg.norm(flat(last[route]) - flat(last[theirs]))
            / np.linalg.norm(flat(last[theirs]))
            for _, _, last in runs
        )
        print(f"{name}, {route}: relative error {np.median(np.abs(ends)):.1e} (last 20 steps), "
              f"{1e3 * least[route]:.0f} ms of CPU per step, {least[theirs] / least[route]:.1f} x, "
              f"parameters {apart:.0e} from VMC_SR's")  # fmt: skip


def draw(axes, name, runs):
    """Draw the relative error against steps and seconds, smoothed over five steps."""
    energies, seconds, _ = runs[0]
    for route, colour in ROUTES.items():
        errors = np.abs(np.convolve(energies[route], np.ones(5) / 5, "valid") / EXACT - 1)
        steps = np.arange(5, 5 + len(errors))
        style = {"c": colour, "label": route, "ls": "--" if route == "ours" else "-"}
        axes[0].semilogy(steps, errors, **style)
        axes[1].loglog(steps * min(seconds[route][1:]), errors, **style)
    axes[0].set(xlabel="step", ylabel="relative error of the energy", title=name)
    axes[1].set(xlabel="CPU seconds, without compiling")


def main() -> None:
    names, steps = option("only", "MLP,RBM").split(","), int(option("steps", "100"))
    figure, axes = plt.subplots(len(names), 2, squeeze=False, layout="constrained",
                                figsize=(9, 3.5 * len(names)))  # fmt: skip
    for name, row in zip(names, axes, strict=True):
        rate, shift = tuned(name, steps) if "--tune" in sys.argv else ANSATZE[name][1:]
        seeds = range(int(option("seeds", "1")))
        runs = [race(name, seed, steps, rate, shift) for seed in seeds]
        report(f"{name}, rate {rate:g}, shift {shift:g}", runs)
        draw(row, name, runs)
    axes[0, 0].legend(frameon=False)
    figure.savefig(picture_path("vmc_netket.png"), dpi=150)


if __name__ == "__main__":
    main()
