"""Samples over devices and processes: the answer of one device, and what each of several does.

python examples/devices.py                                     # 4 devices, then 2 and 4 processes
python examples/devices.py --quick                             # 4 devices only
python examples/devices.py --figure docs/assets/devices.svg    # 1, 2, 4 and 8 devices, drawn

Each line compares a natural gradient with that of one device: the distance, CPU seconds of all
devices together, megabytes of working storage of one device (as the compiler reports them), and
kilobytes that one device receives from the others (of a loop, those of one turn). The problems of
the figure are larger, so that work is more than overhead; the numbers of devices take turns.
"""

import sys

from _shares import draw, run, shares


def distance(line, one):
    """The relative distance of two vectors."""
    pairs = list(zip(line["vector"], one["vector"], strict=True))
    return (sum((a - b) ** 2 for a, b in pairs) / sum(b * b for _, b in pairs)) ** 0.5


def main(places):
    """Print a table of some numbers of processes and of devices of each."""
    one = run(1, 1)
    print(f"{'processes x devices':20} {'solver':7} {'N x P':>11} {'gap':>7}"
          f" {'CPU s':>8} {'MB a device':>12} {'kB received':>12}")  # fmt: skip
    made = {(1, 1): one} | {place: run(*place) for place in places}
    for (number, devices), found in made.items():
        for name, line in found.items():
            print(f"{f'{number} x {devices}':20} {name:7} {line['shape']:>11}"
                  f" {distance(line, one[name]):7.0e} {line['seconds']:8.3f} {line['MB']:12.2f}"
                  f" {line['kB']:12.1f}")  # fmt: skip


def scaling(path):
    """Print a table of work and memory on 1, 2, 4 and 8 devices, and draw it."""
    made = shares()
    print(f"{'devices':>7} {'solver':7} {'N x P':>12} {'gap':>7} {'CPU s':>7} {'of one':>7}"
          f" {'MB a device':>12} {'of one':>7}")  # fmt: skip
    for count, found in made.items():
        for name, line in found.items():
            one = made[1][name]
            print(f"{count:7} {name:7} {line['shape']:>12} {distance(line, one):7.0e}"
                  f" {line['seconds']:7.3f} {line['seconds'] / one['seconds']:7.2f}"
                  f" {line['MB']:12.2f} {line['MB'] / one['MB']:7.3f}")  # fmt: skip
    draw(made, path)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--figure"]:
        scaling(sys.argv[2])
    else:
        main([(1, 4)] if "--quick" in sys.argv else [(1, 4), (2, 1), (4, 1)])
