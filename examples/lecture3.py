"""The pictures of lecture 3 (Grosse): Rosenbrock in both spaces, Gaussian ellipses, pulling back a
metric, units, distance of functions.

`python examples/lecture3.py folder` saves `rosenbrock.png`, `gaussians.png`, `pullback.png`,
`units.png` and `distance.png` there (by default in `pictures`). They are those of the claims in
`pullback_lab.papers.lecture`, which hold the numbers against bounds.
"""

import sys
from pathlib import Path

import jax
from _pictures import picture_folder

from pullback_lab import papers

jax.config.update("jax_enable_x64", True)
PICTURES = {
    "rosenbrock": "rosenbrock",
    "gaussians": "gaussian-coordinates",
    "pullback": "pullback-metric",
    "units": "units",
    "distance": "function-distance",
}


def main(folder: Path) -> int:
    data = {}
    for name, claim in PICTURES.items():
        chosen = papers.REGISTRY[claim]
        data[name] = chosen.measure().data
        chosen.draw(data[name]).savefig(folder / f"{name}.png", dpi=150)
        print(f"{name}.png")
    print("Rosenbrock, end of each path:")
    for name, path in data["rosenbrock"]["paths"].items():
        print(
            f"  {name.replace('$', ''):<40}({path[-1][0]:.3f}, {path[-1][1]:.3f}) after "
            f"{len(path) - 1} steps"
        )
    plain, natural = data["units"]["ratios"].values()
    print(
        f"minutes to seconds: the step of the function changes by {plain:.6g} (gradient), "
        f"{natural:.6g} (natural gradient)"
    )
    return 0 if abs(plain - 3600) < 1e-6 and abs(natural - 1) < 1e-12 else 1


if __name__ == "__main__":
    sys.exit(main(picture_folder()))
