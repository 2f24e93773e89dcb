"""`python docs/architecture.py`: draws the rooms and their imports as docs/assets/architecture.svg.

The sources are parsed, not imported. An arrow leads from a room to a room that it imports; an arrow
that follows from two others is left out. `--check` draws nothing and exits with 1 if the figure
shows other imports than the sources. A cycle of imports also exits with 1.
"""

import ast
import sys
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
FIGURE = ROOT / "docs" / "assets" / "architecture.svg"

# Room -> (kind, what it holds), from the bottom of the house to its top.
ROOMS = {
    "_base": ("words", "types, trees, checks"),
    "_compat": ("words", "JAX internals"),
    "plot": ("use", "pictures"),
    "metric": ("formula", "M = S Sᵀ"),
    "inverse": ("formula", "h(s), gauge"),
    "constraint": ("train", "where θ may be"),
    "weights": ("train", "ω of several terms"),
    "linear": ("use", "closed forms"),
    "_problem": ("formula", "z, L, c, measure"),
    "_rows": ("formula", "A = Sᵀ J"),
    "_gram": ("formula", "K and G by layers"),
    "solver": ("formula", "how: A⁺ r"),
    "_natural": ("formula", "δ = A⁺ r, once"),
    "step": ("train", "how far"),
    "momentum": ("train", "memory of steps"),
    "_descent": ("train", "the optimiser"),
    "until": ("train", "when to end"),
    "_fit": ("train", "the loop"),
    "event": ("use", "reasons to stop"),
    "_flow": ("use", "flows in time"),
    "_geometry": ("use", "examine, invariance"),
    "_proximal": ("use", "proximal steps"),
    "pde": ("use", "PDE residuals"),
    "vmc": ("use", "wave functions"),
    "testing": ("use", "contract checks"),
}
KINDS = {
    "words": ("#e8e8e8", "vocabulary"),
    "formula": ("#cfe0f5", "the formula"),
    "train": ("#d5ecd4", "training"),
    "use": ("#fbe9c6", "questions, fields, tools"),
    "lab": ("#eed7ee", "the public names and their laboratory"),
}
Graph = dict[str, set[str]]


def room_of(parts: list[str]) -> str:
    """`pullback.solver._dual` lies in `solver`; all of `pullback_lab` counts as one room."""
    if parts[0] == "pullback_lab" or len(parts) == 1:
        return parts[0]
    return parts[1]


def targets(node: ast.AST, package: list[str]) -> list[list[str]]:
    """The modules or names that a statement imports, as lists of parts."""
    if isinstance(node, ast.Import):
        return [alias.name.split(".") for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = package[: len(package) - node.level + 1] if node.level else []
        base = base + (node.module.split(".") if node.module else [])
        return [[*base, alias.name] for alias in node.names]
    return []


def imports() -> Graph:
    """The rooms of the sources, each with the rooms that it imports."""
    graph: Graph = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        parts = list(path.relative_to(ROOT / "src").with_suffix("").parts)
        room = room_of(parts[:-1] if parts[-1] == "__init__" else parts)
        found = graph.setdefault(room, set())
        for node in ast.walk(ast.parse(path.read_text())):
            for target in targets(node, parts[:-1]):
                if target[0] in ("pullback", "pullback_lab"):
                    found.add(room_of(target))
    # The public `__init__` imports every room, and the laboratory uses the library through it: both
    # are drawn above the rooms, without arrows to each of them.
    graph.pop("pullback", None)
    graph.pop("pullback_lab", None)
    if unknown := sorted(set(graph) - set(ROOMS)):
        raise ValueError(f"Add these rooms to ROOMS in docs/architecture.py: {unknown}.")
    return {room: (graph[room] & set(graph)) - {room} for room in ROOMS if room in graph}


def cycle(graph: Graph) -> list[str]:
    """The rooms that lie on a cycle of imports."""

    def reachable(start: str) -> set[str]:
        seen: set[str] = set()
        todo = list(graph[start])
        while todo:
            room = todo.pop()
            if room not in seen:
                seen.add(room)
                todo.extend(graph[room])
        return seen

    return [room for room in graph if room in reachable(room)]


def upwards(graph: Graph) -> set[tuple[str, str]]:
    """The imports inside a cycle that go against the order of `ROOMS`; none in a sound house."""
    order = list(ROOMS)
    rooms = set(cycle(graph))
    return {
        (room, other)
        for room in rooms
        for other in graph[room] & rooms
        if order.index(other) > order.index(room)
    }


def reduced(graph: Graph) -> Graph:
    """The imports that do not follow from others, for a graph without cycles."""
    below: dict[str, set[str]] = {}

    def under(room: str) -> set[str]:
        if room not in below:
            below[room] = set(graph[room]).union(*(under(other) for other in graph[room]))
        return below[room]

    return {
        room: {a for a in graph[room] if not any(a in under(b) for b in graph[room] - {a})}
        for room in graph
    }


class Node(NamedTuple):
    """A room, or (with `passing`) the place where a long arrow crosses a layer."""

    layer: int
    name: str
    passing: str = ""


def layered(graph: Graph) -> tuple[list[list[Node]], list[tuple[Node, Node]], list[list[Node]]]:
    """The nodes by layer, the short arrows between neighbouring layers, and the whole arrows."""
    height: dict[str, int] = {}

    def layer(room: str) -> int:
        if room not in height:
            height[room] = 1 + max((layer(other) for other in graph[room]), default=-1)
        return height[room]

    layers: list[list[Node]] = [[] for _ in range(1 + max(layer(room) for room in graph))]
    for room in graph:
        layers[layer(room)].append(Node(layer(room), room))
    paths = []
    for room in graph:
        for other in sorted(graph[room]):
            between = [Node(k, room, other) for k in range(height[room] - 1, height[other], -1)]
            for node in between:
                layers[node.layer].append(node)
            paths.append([Node(height[room], room), *between, Node(height[other], other)])
    return layers, [pair for path in paths for pair in pairwise(path)], paths


def crossings(layers: list[list[Node]], arrows: list[tuple[Node, Node]]) -> int:
    """How many pairs of arrows cross."""
    place = {node: k for layer in layers for k, node in enumerate(layer)}
    count = 0
    for k, (a, b) in enumerate(arrows):
        for c, d in arrows[k + 1 :]:
            if a.layer == c.layer:
                count += (place[a] - place[c]) * (place[b] - place[d]) < 0
    return count


def ordered(layers: list[list[Node]], arrows: list[tuple[Node, Node]]) -> list[list[Node]]:
    """The layers in an order with few crossings: medians first, then swaps of neighbours."""
    beside: dict[Node, list[Node]] = {}
    for a, b in arrows:
        beside.setdefault(a, []).append(b)
        beside.setdefault(b, []).append(a)
    best = [list(layer) for layer in layers]
    trial = [list(layer) for layer in layers]
    for sweep in range(24):
        for k in range(len(trial)) if sweep % 2 else reversed(range(len(trial))):
            place = {n: i / max(len(row) - 1, 1) for row in trial for i, n in enumerate(row)}
            side = -1 if sweep % 2 else 1

            def mean(node: Node, place=place, side=side) -> float:
                near = [place[n] for n in beside.get(node, []) if n.layer == node.layer + side]
                return sum(near) / len(near) if near else place[node]

            trial[k].sort(key=mean)
        if crossings(trial, arrows) < crossings(best, arrows):
            best = [list(layer) for layer in trial]
    for _ in range(6):
        for row in best:
            for i in range(len(row) - 1):
                before = crossings(best, arrows)
                row[i], row[i + 1] = row[i + 1], row[i]
                if crossings(best, arrows) >= before:
                    row[i], row[i + 1] = row[i + 1], row[i]
    return best


WIDTH, HEIGHT, GAP, RISE = 2.0, 0.62, 0.3, 1.12


def half(node: Node) -> float:
    """Half of the room that a node takes on its layer."""
    return (0.12 if node.passing else WIDTH) / 2 + GAP / 2


def placed(layers: list[list[Node]], arrows: list[tuple[Node, Node]]) -> dict[Node, float]:
    """Where each node stands from left to right: near its neighbours, boxes apart."""
    x: dict[Node, float] = {}
    for row in layers:
        at = -sum(half(node) for node in row)
        for node in row:
            x[node] = at + half(node)
            at += 2 * half(node)
    for _ in range(200):
        pull: dict[Node, list[float]] = {}
        for a, b in arrows:
            weight = 4 if a.passing and b.passing else 1
            pull.setdefault(a, []).extend([x[b]] * weight)
            pull.setdefault(b, []).extend([x[a]] * weight)
        for row in layers:
            for node in row:
                wanted = sum(pull.get(node, [x[node]])) / len(pull.get(node, [0]))
                x[node] += 0.5 * (wanted - x[node])
            for _ in range(60):
                for a, b in pairwise(row):
                    overlap = half(a) + half(b) - (x[b] - x[a])
                    if overlap > 0:
                        x[a] -= overlap / 2
                        x[b] += overlap / 2
    return x


def text_of(graph: Graph) -> str:
    """The imports in words: what `--check` compares."""
    return "; ".join(f"{room} -> {', '.join(sorted(graph[room])) or '-'}" for room in graph)


def draw(graph: Graph, path: Path) -> None:
    """Save the figure."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Patch
    from matplotlib.path import Path as Curve

    layers, arrows, paths = layered(graph)
    layers = ordered(layers, arrows)
    x = placed(layers, arrows)
    y = lambda node: RISE * node.layer
    left = min(x[n] - half(n) for n in x)
    right = max(x[n] + half(n) for n in x)
    top = RISE * (len(layers) - 1)
    figure = Figure(figsize=((right - left) * 0.72, (top + 2.7) * 0.72))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(left, right), ylim=(-1.1, top + 1.6))
    axes.axis("off")

    def box(middle: float, height: float, width: float, kind: str, name: str, holds: str) -> None:
        axes.add_patch(
            FancyBboxPatch(
                (middle - width / 2, height - HEIGHT / 2),
                width,
                HEIGHT,
                boxstyle="round,pad=0,rounding_size=0.08",
                fc=KINDS[kind][0],
                ec="#333333",
                lw=0.9,
                zorder=2,
            )
        )
        style = {"ha": "center", "va": "center", "zorder": 3, "color": "#111111"}
        axes.text(middle, height + 0.12, name, fontsize=9.5, weight="bold", **style)
        axes.text(middle, height - 0.14, holds, fontsize=8, **style)

    def arrow(nodes: list[Node]) -> None:
        points = [(x[nodes[0]], y(nodes[0]) - HEIGHT / 2)]
        codes = [Curve.MOVETO]
        for node in nodes[1:]:
            last = node is nodes[-1]
            low = (x[node], y(node) + (HEIGHT / 2 + 0.04 if last else HEIGHT / 2))
            bend = (points[-1][1] - low[1]) / 2
            points += [(points[-1][0], points[-1][1] - bend), (low[0], low[1] + bend), low]
            codes += [Curve.CURVE4] * 3
            if not last:
                points.append((x[node], y(node) - HEIGHT / 2))
                codes.append(Curve.LINETO)
        axes.add_patch(
            FancyArrowPatch(
                path=Curve(points, codes),
                arrowstyle="-|>,head_length=4,head_width=2",
                color="#555555",
                lw=1.1,
                zorder=1,
                joinstyle="round",
            )
        )

    for nodes in paths:
        arrow(nodes)
    rooms = {node.name: node for node in x if not node.passing}
    for name, node in rooms.items():
        kind, holds = ROOMS[name]
        box(x[node], y(node), WIDTH, kind, name, holds)
    wide = (right - left - 2 * GAP) / 2
    holds = "the public names of every room below"
    box(left + GAP / 2 + wide / 2, top + RISE, wide, "lab", "pullback", holds)
    holds = "claims, report, command line: uses pullback"
    box(right - GAP / 2 - wide / 2, top + RISE, wide, "lab", "pullback_lab", holds)
    handles = [Patch(fc=color, ec="#333333", label=label) for color, label in KINDS.values()]
    axes.legend(
        handles=handles, loc="lower center", ncols=len(handles), frameon=False, fontsize=8.5
    )
    with matplotlib.rc_context({"svg.hashsalt": "pullback", "svg.fonttype": "path"}):
        # Only an SVG keeps a description; a PNG is for looking at.
        words = {"Date": None, "Description": text_of(graph)} if path.suffix == ".svg" else None
        figure.savefig(path, metadata=words, facecolor="white", dpi=110)


def main(words: list[str]) -> int:
    """Draw the figure, or check it."""
    graph = imports()
    against = upwards(graph)
    for low, high in sorted(against):
        print(f"{low} imports {high}, which lies above it.", file=sys.stderr)
        graph[low] = graph[low] - {high}
    shown = reduced(graph)
    if "--check" in words:
        if against or text_of(shown).replace(">", "&gt;") not in FIGURE.read_text():
            print("The figure is out of date: python docs/architecture.py", file=sys.stderr)
            return 1
        return 0
    draw(shown, Path(words[0]) if words else FIGURE)
    return 1 if against else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
