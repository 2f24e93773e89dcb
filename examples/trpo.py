"""Policies that spend the KL divergence asked for, beside TRPO with conjugate gradients and PPO.

`python examples/trpo.py` trains one policy for CartPole (a minute) and saves pictures/trpo.png.
`--seeds=10 --only=CartPole,Acrobot,Pendulum --beside` is the whole comparison.
"""

import sys

import jax
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from _pictures import picture_path
from _policies import METHODS, SETTINGS, train

jax.config.update("jax_enable_x64", True)
matplotlib.use("Agg")


def option(name, default):
    """The value of an option `--name=value`."""
    found = [word.split("=", 1)[1] for word in sys.argv[1:] if word.startswith(f"--{name}=")]
    return found[0] if found else default


def main() -> None:
    tasks, seeds = option("only", "CartPole").split(","), int(option("seeds", "1"))
    methods = list(METHODS) if "--beside" in sys.argv else list(METHODS)[:1]
    total = int(option("steps", "0")) or None
    figure, axes = plt.subplots(2, len(tasks), squeeze=False, layout="constrained",
                                figsize=(4 * len(tasks) + 1, 6))  # fmt: skip
    for column, name in enumerate(tasks):
        bound = SETTINGS[name][5]
        for method, color in zip(methods, ("#2f6db3", "#c2553a", "#5a8f4d"), strict=False):
            runs = np.array([train(name, method, seed, total) for seed in range(seeds)])
            best, last, spent = runs[:, 1].max(axis=1), runs[:, 1, -1], runs[:, 2] / bound
            print(f"{name}, {method}: best return {best.min():.0f} to {best.max():.0f}, last "
                  f"{np.median(last):.0f} (worst {last.min():.0f}); KL spent / asked "
                  f"{spent.min():.3f} to {spent.max():.3f}", flush=True)  # fmt: skip
            axes[0, column].plot(runs[0, 0], np.median(runs[:, 1], axis=0), c=color, label=method)
            axes[1, column].plot(runs[0, 0], np.median(runs[:, 2], axis=0), c=color)
        axes[0, column].set(title=name, ylabel="return")
        axes[1, column].axhline(bound, c="#888888", ls=":")
        axes[1, column].set(xlabel="environment steps", ylabel="KL spent", ylim=(0, 2 * bound))
    axes[0, 0].legend(frameon=False)
    figure.savefig(picture_path("trpo.png"), dpi=150)


if __name__ == "__main__":
    main()
