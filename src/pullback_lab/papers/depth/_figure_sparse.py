"""The experiment of Figures 4 and 6: accuracy against the number of samples, logits under natural
gradient flow, coefficients.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from .._claim import Budget
from .._figure import COLOURS
from .._numbers import generator
from ._figure_flows import (
    SPREAD,
    Task,
    accuracy,
    euclidean_flow,
    natural_flow,
    population_descent,
    sample_task,
)

RANDOM = 3.0
"""Standard deviation of the initial logits in the middle panel."""
EARLY = 10.0
LATER = 30.0
"""Times of natural gradient flow: with more samples than dimensions, and not more."""
TIMES = np.array([0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0])


class Sizes(NamedTuple):
    """How large the experiment is."""

    dimension: int
    support: int
    samples: tuple[int, ...]
    most: tuple[int, ...]
    """The bound on the evaluations of Euclidean flow, for depth 1, 2, ..."""
    stiff: bool
    population_steps: int
    seeds: int

    @property
    def few(self) -> int:
        """The number of samples of the middle panel: the largest below the dimension."""
        return max(n for n in self.samples if n < self.dimension)


def natural_time(task: Task) -> float:
    """The time at which natural gradient flow is measured."""
    return LATER if task.x.shape[0] <= task.x.shape[1] else EARLY


def measure(sizes: Sizes, key: PRNGKeyArray) -> dict[str, Any]:
    """Everything the panels show, over seeds."""
    shape = (len(sizes.samples), sizes.seeds)
    depths = range(1, len(sizes.most) + 1)
    data: dict[str, Any] = {
        "samples": np.array(sizes.samples),
        "dimension": sizes.dimension,
        "support": sizes.support,
    }
    euclidean = np.full((len(depths), *shape), np.nan)
    reached = np.full((len(depths), *shape), np.nan)
    fitted = np.full((len(depths), *shape), np.nan)
    others = {name: np.full(shape, np.nan) for name in ("natural", "population", "least_squares")}
    for i, n in enumerate(sizes.samples):
        for seed in range(sizes.seeds):
            rng = generator(jax.random.fold_in(key, 1000 * n + seed))
            task = sample_task(rng, n, sizes.dimension, sizes.support)
            weights = SPREAD * rng.standard_normal((len(sizes.most), sizes.dimension))
            kept = {}
            for d, depth in enumerate(depths):
                run = euclidean_flow(task, weights[:depth], most=sizes.most[d], stiff=sizes.stiff)
                euclidean[d, i, seed] = accuracy(run.beta, task.truth)
                reached[d, i, seed] = run.log_time
                fitted[d, i, seed] = np.mean(task.y * (task.x @ run.beta) > 0)
                kept[f"depth {depth}"] = run.beta
            kept["natural"] = natural_flow(task, natural_time(task))
            others["natural"][i, seed] = accuracy(kept["natural"], task.truth)
            others["population"][i, seed] = accuracy(
                population_descent(task, sizes.population_steps), task.truth
            )
            others["least_squares"][i, seed] = accuracy(
                np.linalg.lstsq(task.x, task.y, rcond=None)[0], task.truth
            )
            if n == sizes.few and seed == 0:
                data["times"] = TIMES
                # From zero all logits of a class would be one line.
                start = RANDOM / np.sqrt(sizes.dimension) * rng.standard_normal(sizes.dimension)
                data["logits"] = np.stack([task.x @ natural_flow(task, t, start) for t in TIMES])
                data["labels"] = task.y
            if n == max(sizes.samples) and seed == 0:
                data["coefficients"] = np.stack(
                    [
                        kept[name] / np.abs(kept[name]).max()
                        for name in ("depth 1", "depth 2", "depth 3", "natural")
                    ]
                )
    return data | {"euclidean": euclidean, "reached": reached, "fitted": fitted} | others


def contrast(beta: np.ndarray, support: int) -> float:
    """The root mean square of the coefficients on the support over that off it."""
    return float(np.sqrt(np.mean(beta[:support] ** 2) / np.mean(beta[support:] ** 2)))


def draw(data: Mapping[str, Any]) -> Any:
    """Left: test accuracy over the number of samples N, by method, mean and deviation over seeds;
    the grey line is N = D. Middle: logits of all training samples under the natural flow from a
    random start, coloured by label; they tend to ±t up to a constant each. Right: coefficients at
    the largest N, the true support left of the grey line.
    """
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(13, 4.2), layout="constrained")
    panels: Any = drawing.subfigures(1, 3, width_ratios=(1.15, 0.9, 1.1))
    left, middle, right = panels
    _accuracies(left.subplots(), data)
    axes = middle.subplots()
    for logits, label in zip(data["logits"].T, data["labels"], strict=True):
        axes.plot(
            data["times"], logits, color=COLOURS[0 if label > 0 else 1], alpha=0.2, linewidth=0.8
        )
    for sign in (1, -1):
        axes.plot(
            data["times"],
            sign * data["times"],
            "--",
            color="black",
            label="±t" if sign > 0 else None,
        )
    axes.set(xlabel="t", ylabel="logits", title=f"natural flow, N = {len(data['labels'])} < D")
    axes.legend()
    names = ("Euclidean, L = 1", "Euclidean, L = 2", "Euclidean, L = 3", "natural")
    for i, (axes, name) in enumerate(zip(right.subplots(4, 1, sharex=True), names, strict=True)):
        shown = min(5 * int(data["support"]), int(data["dimension"]))
        axes.bar(
            np.arange(shown),
            data["coefficients"][i][:shown],
            color=COLOURS[6 if i == 3 else i],
            width=1.0,
        )
        axes.set_ylabel("β")
        axes.text(
            0.99, 0.92, name, transform=axes.transAxes, ha="right", va="top", fontsize="small"
        )
        axes.axvline(data["support"] - 0.5, color="grey", linewidth=0.8)
    axes.set_xlabel(f"coefficient (the first {shown}), N = {max(data['samples'])}")
    return drawing


def _accuracies(axes: Any, data: Mapping[str, Any]) -> None:
    samples = data["samples"]
    lines = [
        (f"Euclidean, L = {d + 1}", values, COLOURS[d], "-")
        for d, values in enumerate(data["euclidean"])
    ]
    lines += [
        ("natural, training Fisher", data["natural"], "black", ":"),
        ("natural, population Fisher", data["population"], "black", "--"),
    ]
    for name, values, colour, style in lines:
        spread = values.std(axis=1, ddof=1) if values.shape[1] > 1 else None
        axes.errorbar(
            samples,
            values.mean(axis=1),
            yerr=spread,
            color=colour,
            linestyle=style,
            marker="o",
            markersize=3,
            capsize=2,
            label=name,
        )
    axes.axvline(data["dimension"], color="grey", linewidth=0.8)
    axes.axhline(0.5, color="grey", linewidth=0.8)
    axes.set(
        xlabel="N",
        ylabel="test accuracy",
        title=f"D = {data['dimension']}, {data['support']} non-zero; mean ± deviation",
    )
    axes.legend(fontsize="x-small", handlelength=3.5)


def seeds(budget: Budget, least: int) -> int:
    """How many repetitions a budget buys."""
    return max(budget.seeds, least) if budget.full else max(budget.seeds, 2)
