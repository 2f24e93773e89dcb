"""Small convolutional networks on noisy minibatches: who wins at equal CPU time?

`python examples/mnist5k.py [--quick] [--seconds 3] [--only digits] [FOLDER]` trains on 5000 digits
of MNIST (`pip install pullback[mnist]`) and on scikit-learn's digits with AdamW, Muon, SOAP,
`BlockDescent`, `solver.Blocks` and the natural gradient. Each has four settings, of which the
validation split chooses, then five seeds. An interrupted run resumes; table and picture are in
FOLDER (pictures/mnist5k).
"""

import argparse
import json
from pathlib import Path

import numpy as np
from _pictures import FOLDER
from _tuned import load, methods, picture, run

SEEDS = range(5)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="digits, a second in all")
    parser.add_argument("--seconds", type=float, default=3.0, help="CPU time of each run")
    parser.add_argument("--only", choices=("mnist5k", "digits"), help="one of the two")
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER / "mnist5k")
    return parser.parse_args()


def compare(name, chosen, folder, seconds, seeds, tries):
    """Tune and run each method on one data set; lines of the table, and curves."""
    path = folder / f"{name}-{seconds:g}s.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    data, lines, curves = load(name), [], {}
    for title, method in chosen.items():

        def result(setting, seed, held, title=title, method=method):
            key = f"{title} {setting} {seed} {held}"
            if key not in known:
                known[key] = run(method, setting, data, seed, seconds, held)
                path.write_text(json.dumps(known))
            return known[key]

        score = lambda setting: np.nan_to_num(result(setting, 100, "validation")["held"], nan=1e9)
        best = min(method.settings[:tries], key=score)
        runs = [result(best, seed, "test") for seed in seeds]
        mean = {k: np.mean([r[k] for r in runs]) for k in ("train", "held", "right", "steps")}
        spread = np.std([r["held"] for r in runs])
        setting = "/".join(f"{x:g}" for x in best)
        lines.append(
            f"| {name} | {title} | {setting} | {mean['steps']:.0f} | {mean['train']:.4f} | "
            f"{mean['held']:.4f} ± {spread:.4f} | {mean['right']:.1%} |"
        )
        print(lines[-1], flush=True)
        curves[title] = [r["curve"] for r in runs]
    return lines, curves


def main():
    given = arguments()
    given.folder.mkdir(parents=True, exist_ok=True)
    names = ("digits",) if given.quick else (given.only,) if given.only else ("mnist5k", "digits")
    chosen, head = methods(), "data | method | setting | steps | training loss | test loss | right"
    seconds, seeds, tries = (0.2, [0], 1) if given.quick else (given.seconds, SEEDS, None)
    if given.quick:
        chosen = {name: chosen[name] for name in ("AdamW", "SOAP", "BlockDescent")}
    print(f"| {head} |\n|{'---|' * 7}", flush=True)
    for name in names:
        lines, curves = compare(name, chosen, given.folder, seconds, seeds, tries)
        (given.folder / f"{name}.md").write_text("\n".join(lines))
        picture(curves, given.folder / f"{name}.png", f"{name}, {seconds:g} s of CPU time each")


if __name__ == "__main__":
    main()
