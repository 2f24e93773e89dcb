"""`python -m bench.scaling [--points K]`: time and memory of every route against N, C, width and
depth; `docs/assets/scaling.svg`.

Softmax MLPs in float32, Tikhonov(1e-3), around 16-32-32-10 with N = 128 (m = 1152 rows, P = 1930
parameters); one thread, CPU time; one fresh process a point. A route is followed until it takes
longer than a few seconds. Where the fastest route changes between two points, the crossing is
interpolated on the logarithms. Written to `bench/results.json` under `scaling`, from where the page
is made.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from .environments import ROOT
from .measure import Entry, measure
from .problems import find, flat, make

FIGURE = ROOT / "docs" / "assets" / "scaling.svg"
LONGEST = 5.0
"""Seconds after which a route is not followed further."""
ROUTES = {
    "default": ("Auto", "#000000"),
    "dual": ("Dual", "#0072B2"),
    "primal": ("Primal", "#D55E00"),
    "krylov": ("Krylov", "#009E73"),
    "svd": ("SVD", "#CC79A7"),
    "generic": ("J formed, smaller side", "#999999"),
}


class Sweep(NamedTuple):
    """One quantity that varies."""

    axis: str
    values: tuple[int, ...]
    name: Callable[[int], str]


def _mlp(hidden, classes: int, samples: int) -> str:
    return "mlp-" + "-".join(map(str, (16, *hidden, classes))) + f"@{samples}"


SWEEPS = {
    "N": Sweep(
        "samples N", (16, 32, 64, 128, 256, 512, 1024, 2048, 4096), lambda n: _mlp((32, 32), 10, n)
    ),
    "C": Sweep("classes C", (2, 4, 8, 16, 32, 64), lambda c: _mlp((32, 32), c, 128)),
    "width": Sweep(
        "parameters P (by width)", (8, 16, 32, 64, 128, 256, 512), lambda w: _mlp((w, w), 10, 128)
    ),
    "depth": Sweep("hidden layers", (1, 2, 4, 8, 16), lambda d: _mlp((32,) * d, 10, 128)),
}


def sweep(key: str, points: int | None, say) -> list[dict[str, Any]]:
    """The measured points of one sweep."""
    found = []
    alive = dict.fromkeys(ROUTES, True)
    for value in SWEEPS[key].values[:points]:
        name = SWEEPS[key].name(value)
        routes = [route for route in ROUTES if alive[route]]
        entries = [Entry(route, "ours", "ours", route) for route in routes]
        records = measure(name, entries, 1, 3, lambda text: None, compare=False)
        size = int(flat(make(find(name))[0]).size)
        for route, record in zip(routes, records, strict=True):
            alive[route] = record.get("seconds", math.inf) < LONGEST
            if "seconds" in record:
                found.append(
                    {"value": value, "size": size, "rows": find(name).rows, "route": route}
                    | {k: record[k] for k in ("seconds", "peak_run")}
                )
        say(
            f"{key} = {value}: "
            + ", ".join(f"{r['approach']} {r.get('seconds', math.nan):.3g} s" for r in records)
        )
    return found


def position(key: str, point: dict[str, Any]) -> float:
    """Where a point stands on the axis: P for the widths, else the value itself."""
    return point["size"] if key == "width" else point["value"]


def curve(
    key: str, points: list[dict[str, Any]], route: str, quantity: str
) -> list[tuple[float, float]]:
    """(position, quantity) of one route."""
    return [(position(key, p), p[quantity]) for p in points if p["route"] == route]


def takeovers(key: str, points: list[dict[str, Any]]) -> list[tuple[float, str, str]]:
    """(position, before, after): where the fastest route, `Auto` apart, becomes another."""
    curves = {
        route: dict(curve(key, points, route, "seconds")) for route in ROUTES if route != "default"
    }
    places = sorted({position(key, p) for p in points})
    best = {
        x: min((c[x], route) for route, c in curves.items() if x in c)[1]
        for x in places
        if any(x in c for c in curves.values())
    }
    found = []
    for x0, x1 in zip(list(best)[:-1], list(best)[1:], strict=True):
        a = best[x0]
        b = best[x1]
        if a == b:
            continue
        # log t_b - log t_a goes from positive to negative; where it is not known at an end, take
        # the end.
        if x0 in curves[b] and x1 in curves[a]:
            d0 = math.log(curves[b][x0] / curves[a][x0])
            d1 = math.log(curves[b][x1] / curves[a][x1])
            fraction = d0 / (d0 - d1)
            found.append((math.exp(math.log(x0) + fraction * math.log(x1 / x0)), a, b))
        else:
            found.append((x1, a, b))
    return found


def draw(results: dict[str, list[dict[str, Any]]]) -> None:
    """The figure."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams |= {
        "svg.hashsalt": "scaling",
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    figure, axes = plt.subplots(
        2, len(SWEEPS), figsize=(13, 6), sharex="col", sharey="row", layout="constrained"
    )
    for column, (key, points) in enumerate(results.items()):
        for line, quantity in enumerate(("seconds", "peak_run")):
            ax = axes[line, column]
            for route, (label, colour) in ROUTES.items():
                data = [
                    (x, max(y, 1.0 if line else 0.0))
                    for x, y in curve(key, points, route, quantity)
                ]
                style = (
                    {"ls": "none", "marker": "o", "mfc": "none", "ms": 7}
                    if route == "default"
                    else {"marker": ".", "lw": 1.5}
                )
                if data:
                    ax.plot(*zip(*data, strict=True), color=colour, label=label, **style)
            ax.set_xscale("log", base=2 if key != "width" else 10)
            ax.set_yscale("log")
            ax.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
            ax.xaxis.set_minor_formatter(lambda x, _: "")
            ax.grid(alpha=0.25, lw=0.5)
        for x, _, after in takeovers(key, points):
            axes[0, column].axvline(x, color=ROUTES[after][1], lw=1, ls=":")
            axes[0, column].annotate(
                f" {ROUTES[after][0]}",
                (x, 1),
                xycoords=("data", "axes fraction"),
                color=ROUTES[after][1],
                va="top",
                fontsize=8,
            )
        axes[1, column].set_xlabel(SWEEPS[key].axis)
    axes[0, 0].set_ylabel("CPU seconds, one thread")
    axes[1, 0].set_ylabel("peak memory of a run, MB")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(ROUTES), frameon=False)
    FIGURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(FIGURE, metadata={"Date": None})
    figure.savefig(ROOT / "build" / "bench" / "scaling.png", dpi=110)
    plt.close(figure)


def section(results: dict[str, list[dict[str, Any]]]) -> str:
    """The part of the page."""
    lines = [
        "## Scaling",
        "",
        "Written by `python -m bench.scaling`. Softmax MLPs in float32, damping 1e-3, around "
        "16-32-32-10 with N = 128 (m = 1152, P = 1930): one of N, C, P and depth varies. A "
        f"route is followed until it takes {LONGEST:g} s. Circles: what `Auto` took. Dotted: "
        "where another route becomes the fastest. The iterations of Krylov depend on the "
        "spectrum and the damping: these are random networks, and smaller damping takes more.",
        "",
        "![time and memory against N, C, P and depth](assets/scaling.svg)",
        "",
        "| varies | fastest first | then, from about |",
        "|:--|:--|:--|",
    ]
    for key, points in results.items():
        found = takeovers(key, points)
        first = (
            found[0][1]
            if found
            else min((p["seconds"], p["route"]) for p in points if p["route"] != "default")[1]
        )
        after = (
            ", ".join(f"{ROUTES[b][0]} from {x:.3g}" for x, _, b in found)
            or "no other in this range"
        )
        lines.append(f"| {SWEEPS[key].axis} | {ROUTES[first][0]} | {after} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Measure, draw, write."""
    from .__main__ import PAGE, RESULTS
    from .page import page

    parser = argparse.ArgumentParser(
        prog="python -m bench.scaling",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--points", type=int, help="only the first so many values of each sweep")
    parser.add_argument("--draw", action="store_true", help="draw what was measured before")
    arguments = parser.parse_args()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if not arguments.draw:
        say = lambda text: print(text, file=sys.stderr, flush=True)
        results["scaling"] = {key: sweep(key, arguments.points, say) for key in SWEEPS}
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    draw(results["scaling"])
    if "when" in results:
        PAGE.write_text(page(results), encoding="utf-8")
    print(section(results["scaling"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
