"""The figure eight, drawn: in its crossing two parametrisations have different natural gradients.

`python examples/figure_eight.py picture.png` saves the picture there (by default in the working directory).
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np

from pullback.papers.invariance.figure_eight import DOMAIN, phi, psi, pushforward

matplotlib.use("Agg")
jax.config.update("jax_enable_x64", True)


def draw():
    """The curve, the ambient gradient of L(x, y) = x in the crossing, and its two projections."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4.5), layout="constrained")
    axes = figure.subplots()
    curve = np.asarray(jax.vmap(phi)(jnp.linspace(*DOMAIN, 400)[:, None]))
    axes.plot(*curve.T, color="0.6", lw=1.5, zorder=1)
    dx = np.array([1.0, 0.0])
    arrows = (
        (dx, "black", "ambient gradient of L(x, y) = x"),
        (pushforward(phi, 0.0, dx), "tab:blue", "natural gradient at ξ = 0 of φ"),
        (pushforward(psi, 0.0, dx), "tab:red", "natural gradient at θ = 0 of ψ(θ) = φ(π - θ)"),
    )
    for vector, colour, label in arrows:
        axes.quiver(0, 0, *vector, color=colour, angles="xy", scale_units="xy", scale=1, width=0.008, zorder=3, label=label)
        if colour != "black":
            axes.plot([vector[0], dx[0]], [vector[1], dx[1]], color=colour, lw=1, ls=":", zorder=2)
    axes.set(xlabel="x", ylabel="y", aspect="equal", title="One point, two parametrisations, two natural gradients")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), frameon=False, fontsize=9)
    return figure, [vector for vector, *_ in arrows[1:]]


def main(path: Path) -> None:
    figure, (first, second) = draw()
    figure.savefig(path, dpi=150)
    show = lambda v: "({:.1f}, {:.1f})".format(*v)
    print(f"natural gradients in the crossing: {show(first)} and {show(second)}; picture: {path}")
    if not np.allclose([first, second], [[0.8, 0.4], [0.8, -0.4]], rtol=0, atol=1e-12):
        raise SystemExit("They should be (0.8, 0.4) and (0.8, -0.4).")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "figure_eight.png"))
