"""The diagrams of the paper, Figures 1, 2, 3 and 6, drawn from computed numbers."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import pullback as pb

from .._figure import COLOURS, arrow

SIDE = 25


def space(columns: int, kinds: tuple[bool, ...], size: tuple[float, float]) -> tuple[Any, list]:
    """A figure with one row of panels; those marked are of three dimensions."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(columns * size[0], size[1]), layout="constrained")
    axes = [
        figure.add_subplot(1, columns, i + 1, projection="3d" if solid else None)
        for i, solid in enumerate(kinds)
    ]
    return figure, axes


def axes_of_space(ax: Any, limits: tuple[tuple[float, float], ...]) -> None:
    """Names, limits and an equal scale for the axes of a panel of three dimensions."""
    ax.set(xlabel="$z_1$", ylabel="$z_2$", zlabel="$z_3$")
    ax.set(xlim=limits[0], ylim=limits[1], zlim=limits[2])
    ax.set_box_aspect([high - low for low, high in limits])


# ---- Figure 1: parametrisation and objective function -------------------------------------------


def hill(xi: Float[Array, " 2"]) -> Float[Array, " 3"]:
    """A surface over the plane."""
    return jnp.stack([xi[0], xi[1], 0.5 * jnp.sin(1.5 * xi[0]) + 0.3 * xi[1] ** 2])


def objective(z: Float[Array, " 3"]) -> Float[Array, ""]:
    """A function on the space around it."""
    return 0.7 * z[0] + 0.4 * z[1] + 0.9 * z[2]


def parametrisation() -> dict[str, Any]:
    """A point of the surface, the ambient gradient, the natural gradient on both sides."""
    xi = jnp.asarray([0.2, 0.3])
    ng = pb.natural_gradient(pb.Composite(hill, loss=objective), xi)
    side = jnp.linspace(-1.0, 1.0, SIDE)
    grid = jnp.stack(jnp.meshgrid(side, side), axis=-1)
    surface = jax.vmap(jax.vmap(hill))(grid)
    return {
        "xi": np.asarray(xi),
        "z": np.asarray(hill(xi)),
        "ambient": np.asarray(jax.grad(objective)(hill(xi))),
        "vector": np.asarray(ng.vector),
        "pushed": np.asarray(ng.pushforward),
        "side": np.asarray(side),
        "surface": np.asarray(surface),
        "values": np.asarray(jax.vmap(jax.vmap(objective))(surface)),
    }


def draw_parametrisation(data: Any) -> Any:
    """Figure 1. Left, the parameters, with contours of L∘φ and the natural parameter gradient;
    right, the model as a surface in Z, coloured by L, with the ambient gradient and its projection
    on the tangent plane, the natural gradient.
    """
    figure, (flat, solid) = space(2, (False, True), (5.2, 4.2))
    flat.contour(data["side"], data["side"], data["values"], levels=12, cmap="cividis")
    flat.plot(*data["xi"], "ko", ms=4)
    arrow(flat, data["xi"], 0.5 * data["vector"], COLOURS[1])
    flat.set(
        xlabel=r"$\xi_1$",
        ylabel=r"$\xi_2$",
        aspect="equal",
        title="Ξ, contours of L∘φ,\nnatural parameter gradient (half)",
    )
    low, high = float(data["values"].min()), float(data["values"].max())
    from matplotlib import colormaps

    colours = colormaps["cividis"]((data["values"] - low) / (high - low))
    x, y, z = data["surface"].transpose(2, 0, 1)
    solid.plot_surface(x, y, z, facecolors=colours, alpha=0.55, linewidth=0)
    for name, colour, label in (
        ("ambient", "black", "ambient gradient"),
        ("pushed", COLOURS[1], "natural gradient"),
    ):
        solid.quiver(*data["z"], *data[name], color=colour, lw=2, label=label)
    ends = np.stack([data["z"] + data["ambient"], data["z"] + data["pushed"]], axis=1)
    solid.plot(*ends, ":", color="0.3")
    axes_of_space(solid, ((-1, 1.1), (-1, 1.1), (-0.6, 1.2)))
    solid.set(title="M = φ(Ξ) in Z, coloured by L")
    solid.legend(frameon=False, loc="upper left", fontsize=8)
    return figure


# ---- Figures 2 and 6: two parametrisations ------------------------------------------------------


def bend(xi: Float[Array, " 2"]) -> Float[Array, " 2"]:
    """φ, a map of the plane to a part of it."""
    return jnp.stack([xi[0] + 0.25 * xi[1] ** 2, xi[1] + 0.3 * jnp.sin(xi[0])])


def change(theta: Float[Array, " 2"]) -> Float[Array, " 2"]:
    """f, a diffeomorphism of the parameters."""
    return jnp.stack([0.8 * theta[0] - 0.3 * jnp.sin(theta[1]), theta[1] + 0.35 * theta[0]])


def both(theta: Float[Array, " 2"]) -> Float[Array, " 2"]:
    """ψ = φ∘f."""
    return bend(change(theta))


def away(z: Float[Array, " 2"]) -> Float[Array, ""]:
    """A function on the model."""
    return z[0] + 0.5 * z[1] ** 2


def two_parametrisations() -> dict[str, Any]:
    """The grids of both parameter spaces on the model, and the natural gradients of both."""
    theta = jnp.asarray([0.3, 0.4])
    xi = change(theta)
    first = pb.natural_gradient(pb.Composite(bend, loss=away), xi)
    second = pb.natural_gradient(pb.Composite(both, loss=away), theta)
    lines = _lines()
    return {
        "lines": lines,
        "on M by φ": _images(bend, lines),
        "on M by ψ": _images(both, lines),
        "points": np.stack([np.asarray(x) for x in (theta, xi, bend(xi))]),
        "vectors": np.stack([np.asarray(ng.vector) for ng in (second, first)]),
        "pushed": np.stack([np.asarray(ng.pushforward) for ng in (second, first)]),
    }


def _lines() -> np.ndarray:
    """The lines of a grid on [-1, 1]²: line, point, coordinate."""
    fixed, free = np.linspace(-1, 1, 7), np.linspace(-1, 1, 30)
    across = np.stack(np.broadcast_arrays(fixed[:, None], free[None, :]), axis=-1)
    return np.concatenate([across, across[..., ::-1]])


def _images(f: Any, lines: np.ndarray) -> np.ndarray:
    return np.asarray(jax.vmap(jax.vmap(f))(jnp.asarray(lines)))


def draw_two(data: Any) -> Any:
    """Figure 2. Two parameter spaces, left and middle, with a grid each; right, both grids on the
    model, with the natural parameter gradients pushed forward: one vector. (Arrows times 0.6.)
    """
    figure, axes = space(3, (False, False, False), (3.9, 3.9))
    panels = (("Θ", r"\theta", 0), ("Ξ", r"\xi", 1))
    for ax, (name, letter, i) in zip(axes, panels, strict=False):
        for line in data["lines"]:
            ax.plot(*line.T, color=COLOURS[i], lw=0.8)
        arrow(ax, data["points"][i], 0.6 * data["vectors"][i], "black")
        title = f"{name}, natural parameter gradient"
        ax.set(xlabel=f"${letter}_1$", ylabel=f"${letter}_2$", aspect="equal", title=title)
    for i, kind in enumerate(("on M by ψ", "on M by φ")):
        for line in data[kind]:
            axes[2].plot(*line.T, color=COLOURS[i], lw=0.8, ls=("-", "--")[i])
    arrow(axes[2], data["points"][2], 0.6 * data["pushed"][0], COLOURS[0], "from Θ, by dψ", 0.022)
    arrow(axes[2], data["points"][2], 0.6 * data["pushed"][1], COLOURS[1], "from Ξ, by dφ", 0.01)
    axes[2].set(xlabel="$z_1$", ylabel="$z_2$", aspect="equal", title="M, one natural gradient")
    axes[2].legend(frameon=False, fontsize=8, loc="lower right")
    return figure


def draw_different(data: Any) -> Any:
    """Figure 6, with the numbers of A.3. Left, the natural parameter gradient on Θ; middle, that on
    Ξ and the first one mapped there: they differ along the dashed kernel of G; right, both move the
    model, a line, by the same vector.
    """
    figure, axes = space(3, (False, False, False), (3.9, 3.7))
    left, middle, right = axes
    arrow(left, data["theta"], data["on theta"], COLOURS[0], width=0.015)
    left.plot(*data["theta"], "ko", ms=4)
    left.set(xlabel=r"$\theta_1$", ylabel=r"$\theta_2$", xlim=(0, 5), ylim=(0, 5), title="Θ")
    for name, colour, label in (
        ("y_theta", COLOURS[0], "from Θ, by df: (4.8, 1.2)"),
        ("y_xi", COLOURS[1], "on Ξ: (3, 3)"),
    ):
        arrow(middle, data["xi"], data[name], colour, label, 0.015)
    middle.plot(*data["xi"], "ko", ms=4)
    ends = data["xi"] + np.stack([data["y_xi"] + [-1.0, 1.0], data["y_theta"] + [0.8, -0.8]])
    middle.plot(*ends.T, "--", color="0.4", label="kernel of G")
    middle.set(xlabel=r"$\xi_1$", ylabel=r"$\xi_2$", xlim=(0, 9), ylim=(0, 9), title="Ξ")
    middle.legend(frameon=False, fontsize=8, loc="upper left")
    right.axhline(0, color="0.6", lw=1.5)
    point = data["pushed"][0] * 0 + [3.0, 0.0]
    arrow(right, point, data["pushed"][0], COLOURS[0], "from Θ", 0.03)
    arrow(right, point, data["pushed"][1], COLOURS[1], "from Ξ", 0.012)
    right.set(xlabel="x", ylabel="y", xlim=(0, 10), ylim=(-5, 5), title="M, a line in Z")
    right.legend(frameon=False, fontsize=8)
    for ax in axes:
        ax.set(aspect="equal")
    return figure


# ---- Figures 3 and 4: a surface, then its projection --------------------------------------------


def draw_projection(data: Any) -> Any:
    """Figures 3 and 4. Left, the surface (s, t³, t) above the plane M on which it is projected: at
    the dot its tangent plane is vertical, and the projection of the tangent plane is a line.
    Middle, the spans of φ and of φ rotated by a right angle. Right, the natural gradient and its
    projections on the two spans.
    """
    figure, (solid, spans, vectors) = space(3, (True, False, False), (4.1, 3.9))
    side = np.linspace(-1, 1, SIDE)
    s, t = np.meshgrid(side, side)
    solid.plot_surface(s, t**3, t, color=COLOURS[5], alpha=0.6, linewidth=0)
    solid.plot_surface(s, t, 0 * s - 1.6, color="0.8", alpha=0.5, linewidth=0)
    solid.plot([0, 0], [0, 0], [0, -1.6], ":", color="0.3")
    solid.plot([0], [0], [0], "ko", ms=4)
    solid.plot([-1, 1], [0, 0], [-1.6, -1.6], color=COLOURS[0], lw=3)
    for direction in ((0.8, 0, 0), (0, 0, 0.8)):
        solid.quiver(0, 0, 0, *direction, color="black", lw=1.5)
    axes_of_space(solid, ((-1, 1), (-1, 1), (-1.6, 1)))
    solid.set(title="(s, t) → (s, t³, t) → (s, t³)")
    solid.view_init(elev=18, azim=-50)
    c = data["gradient"]
    tangents = np.asarray(data["spans"])
    for i, name in enumerate(("span of φ", "span of ψ")):
        direction = tangents[i]
        for sign in (1, -1):
            label = name if sign > 0 else ""
            arrow(spans, (0, 0), sign * direction, COLOURS[i], label, 0.015)
    arrow(vectors, (0, 0), c, "black", "natural gradient")
    for i, name in enumerate(("on the span of φ", "on the span of ψ")):
        projected = np.asarray(data["projected"])[i]
        arrow(vectors, (0, 0), projected, COLOURS[i], name)
        vectors.plot(*np.stack([projected, c], axis=1), ":", color=COLOURS[i], lw=1)
    for ax, title in ((spans, "the two spans"), (vectors, "natural gradient and projections")):
        ax.set(xlim=(-1.2, 1.2), ylim=(-1.2, 1.2), xlabel="$z_1$", ylabel="$z_2$", aspect="equal")
        ax.set(title=title)
        ax.legend(frameon=False, fontsize=8, loc="lower right")
    return figure
