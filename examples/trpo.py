"""Policies that spend the KL divergence asked for, beside TRPO with conjugate gradients and PPO.

`python examples/trpo.py` trains one policy for CartPole (a minute) and saves pictures/trpo.png.
`--seeds=10 --only=CartPole,Acrobot,Pendulum --beside` is the whole comparison. With `--keep=FOLDER`
each finished run is kept there, and a comparison that was interrupted resumes.
"""

import sys

import jax
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from _kept import kept
from _pictures import option, picture_path
from _policies import METHODS, SETTINGS

jax.config.update("jax_enable_x64", True)
matplotlib.use("Agg")
# The return to reach; those of Acrobot and Pendulum are TRPO's after 100 000 steps.
WANTED = {"CartPole": 475, "Acrobot": -83, "Pendulum": -175}
COLOURS = ("#2f6db3", "#c2553a", "#5a8f4d")


def report(name, method, runs):
    """Print what the seeds reached. Returns are means of five evaluations one after the other."""
    spent, wanted = runs[:, 2] / runs[:, 3], WANTED[name]
    width = min(5, runs.shape[2])
    means = np.lib.stride_tricks.sliding_window_view(runs[:, 1], width, axis=1).mean(axis=-1)
    last, steps = means[:, -1], runs[0, 0, width - 1 :]
    first = [int(steps[row.argmax()]) for row in means >= wanted if row.any()]
    when = f" after {min(first)} to {max(first)} steps" if first else ""
    taken = spent[spent > 0] if (spent > 0).any() else spent
    print(f"{name}, {method}: return {wanted} reached in {len(first)} of {len(runs)} seeds{when}\n"
          f"    at the end: median {np.median(last):.0f}, worst {last.min():.0f}, {wanted} or more "
          f"in {(last >= wanted).sum()} of {len(runs)}; best evaluation {runs[:, 1].max():.0f}\n"
          f"    KL spent / asked {taken.min():.3f} to {taken.max():.3f} (median "
          f"{np.median(taken):.3f}), {(spent == 0).sum()} of {spent.size} steps rejected",
          flush=True)  # fmt: skip


def draw(column, runs, method, colour):
    """Draw the median over the seeds, and the range of all seeds."""
    for axes, rows in zip(column, (runs[:, 1], runs[:, 2]), strict=True):
        axes.plot(runs[0, 0], np.median(rows, axis=0), c=colour, label=method)
        if len(rows) > 1:
            axes.fill_between(runs[0, 0], *np.quantile(rows, (0, 1), axis=0),
                              color=colour, alpha=0.15, lw=0)  # fmt: skip


def main() -> None:
    tasks, seeds = option("only", "CartPole").split(","), int(option("seeds", "1"))
    methods = list(METHODS) if "--beside" in sys.argv else list(METHODS)[:1]
    total = int(option("steps", "0")) or None
    if unknown := [name for name in tasks if name not in SETTINGS]:
        raise SystemExit(f"--only takes some of {','.join(SETTINGS)}, got {','.join(unknown)}.")
    least = max(SETTINGS[name].environments * SETTINGS[name].steps for name in tasks)
    if total and total < least:
        raise SystemExit(f"--steps must be at least {least}, one batch, got {total}.")
    figure, axes = plt.subplots(2, len(tasks), squeeze=False, layout="constrained",
                                figsize=(4 * len(tasks) + 1, 6))  # fmt: skip
    for name, column in zip(tasks, axes.T, strict=True):
        bound = SETTINGS[name].divergence
        for method, colour in zip(methods, COLOURS, strict=False):
            runs = np.array([kept(name, method, seed, total) for seed in range(seeds)])
            report(name, method, runs)
            draw(column, runs, method, colour)
        column[0].axhline(WANTED[name], c="#888888", ls=":")
        column[0].set(title=name, ylabel="return")
        column[1].plot(runs[0, 0], runs[0, 3], c="#888888", ls=":")
        column[1].set(xlabel="environment steps", ylabel="KL spent", ylim=(0, 2 * bound))
    axes[0, 0].legend(frameon=False)
    figure.savefig(picture_path("trpo.png"), dpi=150)


if __name__ == "__main__":
    main()
