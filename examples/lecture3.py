"""The pictures of lecture 3 (Grosse): Rosenbrock in both spaces, Gaussian ellipses, pulling back a metric, units, distance of functions.

`python examples/lecture3.py folder` saves `rosenbrock.png`, `gaussians.png`, `pullback.png`, `units.png` and `distance.png` there.
How they are drawn: `pullback.papers.lecture.pictures`.
"""

import sys
from pathlib import Path

import jax

from pullback.papers.lecture import pictures

jax.config.update("jax_enable_x64", True)


def main(folder: Path) -> int:
    rosenbrock, losses = pictures.rosenbrock()
    units, changes = pictures.units()
    figures = {"rosenbrock": rosenbrock, "gaussians": pictures.gaussians(), "pullback": pictures.pulled_back()}
    figures |= {"units": units, "distance": pictures.functions()}
    for name, figure in figures.items():
        figure.savefig(folder / f"{name}.png", dpi=150)
        print(f"{name}.png")
    print("Rosenbrock, loss at the end of each path:")
    for name, loss in losses.items():
        print(f"  {name:<40}{loss:.2e}")
    plain, natural = (changes[kind, "seconds"] / changes[kind, "minutes"] for kind in (False, True))
    print(f"minutes to seconds: the step of the function changes by {plain:.6g} (gradient), {natural:.6g} (natural gradient)")
    return 0 if abs(plain - 3600) < 1e-6 and abs(natural - 1) < 1e-12 else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ".")))
