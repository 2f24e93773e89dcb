"""The ground state of the transverse-field Ising chain: all configurations, and samples.

`python examples/vmc.py` saves pictures/vmc.png. `--ladder` prints a table of all models with known
energies instead, the Ising model on a 6x6 square from samples (a quarter of an hour of one core);
`--ladder=6×6` prints the rows whose names have this in them.
"""

import sys
import time

import j1j2
import jax
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from _pictures import picture_path
from _waves import HEISENBERG, SQUARE, everything, samples, square

from pullback import vmc

jax.config.update("jax_enable_x64", True)
matplotlib.use("Agg")
WANTED = next((x.partition("=")[2] for x in sys.argv if x.startswith("--ladder=")), "")
CHAIN = -12.784906442999322  # of 10 spins


def row(name, exact, run, *arguments):
    """Print one line of the table; `run` returns a run, the energy at its end, and its error."""
    if WANTED not in name:
        return
    begun = time.process_time()
    fit, energy, *rest = run(*arguments)
    seconds, error = time.process_time() - begun, abs(energy / exact - 1)
    spread = f" (± {rest[0] / abs(exact):.0e})" if rest else ""
    print(f"| {name} | {exact:.12f} | {error:.1e}{spread} | {fit.steps} | {seconds:.0f} |",
          flush=True)  # fmt: skip


def ladder():
    """Print the table of docs/vmc.md."""
    print("| model | exact energy | relative error | steps | CPU s |\n|---|---:|---:|---:|---:|")
    chain = vmc.Lattice((10,))
    ising, level = vmc.ising(chain, field=1.0), CHAIN * (1 - 1e-12)
    row("Ising chain 10, h = 1", CHAIN, everything, chain, ising, 8, 200, level)
    for name, shape, exact, width, steps, damping in HEISENBERG:
        lattice, level = vmc.Lattice(shape), exact * (1 - 1e-7)
        hamiltonian = vmc.heisenberg(lattice)
        row(name, exact, everything, lattice, hamiltonian, width, steps, level, damping)
    row("J1-J2 4×4, J2 = 0.5", j1j2.EXACT, j1j2.run)
    row("Ising 6×6, h = 3, samples", SQUARE, square)


def main() -> None:
    if any(word.startswith("--ladder") for word in sys.argv):
        ladder()
        return
    lattice, exact = vmc.Lattice((10,)), CHAIN
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


if __name__ == "__main__":
    main()
