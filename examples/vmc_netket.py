"""NetKet's `VMC_SR` beside our natural gradient: same ansatz, same samples, same seeds, one run.

`python examples/vmc_netket.py` takes the Ising chain of 16 spins at h = 1 with two networks of
NetKet, and saves pictures/vmc_netket.png. It needs NetKet: pip install 'pullback[netket]'. Options:
`--steps=100`, `--seeds=1`, `--only=MLP,RBM`, `--tune` (tries rates and shifts first).

All three routes take the same steps, so that what is best for one is best for all. `--tune` chose
the rate and the shift of the RBM; those of the MLP are near. The routes take turns on one core, and
the CPU time of a turn counts.
"""

import os
import sys

# One core, before JAX counts them: a ratio of times of one thread each.
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

import jax
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from _netket import ANSATZE, EXACT, ROUTES, race, tuned
from _pictures import option, picture_path
from jax.flatten_util import ravel_pytree

jax.config.update("jax_enable_x64", True)
matplotlib.use("Agg")


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
