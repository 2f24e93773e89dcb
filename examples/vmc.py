"""The ground state of the transverse-field Ising chain: all configurations, and samples.

`python examples/vmc.py` saves pictures/vmc.png. `--ladder` adds the Heisenberg models with known
energies (minutes).
"""

import sys
import time

import jax
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from _pictures import picture_path
from _waves import positive, start

import pullback as pb
from pullback import vmc

jax.config.update("jax_enable_x64", True)
matplotlib.use("Agg")
RATES = tuple(2.0**-k for k in range(14))
# name, lattice, exact energy, width, steps, damping
LADDER = (
    ("Heisenberg 4x4", (4, 4), -44.91393283371549, 8, 60, 1e-8),
    ("Heisenberg chain 20", (20,), -35.61754611950579, 24, 40, 1e-6),
)


def everything(lattice, hamiltonian, width, steps, level, damping=1e-8):
    """A run on all configurations, one of each class of equivalent ones."""
    energy = vmc.problem(positive(lattice), hamiltonian)
    batch = vmc.full_sum(energy, lattice.symmetries())
    rule = pb.step.GridSearch(RATES)
    opt = pb.NaturalGradientDescent(energy, step=rule, inverse=pb.Tikhonov(damping))
    until = pb.until.LossBelow(level)
    fit = pb.fit(opt, start(lattice, width), batch, steps, until=until, progress=False)
    return fit, float(vmc.estimate(energy, fit.params, batch).energy)


def samples(lattice, hamiltonian, width, steps):
    """A run on samples, whose last 100 energies are averaged."""
    energy = vmc.problem(positive(lattice), hamiltonian)
    opt = pb.NaturalGradientDescent(energy, step=0.03, inverse=pb.Tikhonov(1e-3))
    return pb.fit(opt, start(lattice, width), vmc.Metropolis(energy, 512), steps, progress=False)


def ladder():
    for name, shape, exact, width, steps, damping in LADDER:
        begun, lattice = time.perf_counter(), vmc.Lattice(shape)
        level, hamiltonian = exact * (1 - 1e-7), vmc.heisenberg(lattice)
        fit, energy = everything(lattice, hamiltonian, width, steps, level, damping)
        error, seconds = abs(energy / exact - 1), time.perf_counter() - begun
        print(f"{name}: relative error {error:.1e} after {fit.steps} steps, {seconds:.0f} s")


def main() -> None:
    lattice, exact = vmc.Lattice((10,)), -12.784906442999322
    hamiltonian = vmc.ising(lattice, field=1.0)
    errors = lambda fit: np.abs(np.asarray(fit.history["loss"]) / exact - 1)
    whole, energy = everything(lattice, hamiltonian, 8, 200, exact * (1 - 1e-12))
    error = abs(energy / exact - 1)
    print(f"Ising chain 10, all configurations: relative error {error:.1e}, {whole.steps} steps")
    assert error < 1e-10
    drawn = samples(lattice, hamiltonian, 8, 300)
    error = abs(np.mean(drawn.history["loss"][-100:]) / exact - 1)
    print(f"Ising chain 10, 512 samples: relative error {error:.1e} of the last 100 energies, "
          f"acceptance {float(drawn.sampler.acceptance):.2f}")  # fmt: skip
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    axes.semilogy(errors(drawn), label="512 samples", color="#c2553a", lw=1)
    axes.semilogy(errors(whole), label="all configurations", color="#2f6db3")
    axes.set(xlabel="step", ylabel="relative error of the energy", title="Ising chain, h = 1")
    axes.legend()
    figure.savefig(picture_path("vmc.png"), dpi=150)
    if "--ladder" in sys.argv:
        ladder()


if __name__ == "__main__":
    main()
