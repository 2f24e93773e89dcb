"""The exact natural gradient against its floor and its peers, as ratios measured in one run: `make
bench`, `python -m bench --help`.

Ships with the repository only. What runs in a peer's environment (`problems`, `worker`, `peers/`)
needs NumPy and that peer, nothing else.
"""

import os

# A worker keeps to the last cores, before any library makes its threads.
if "BENCH_CORES" in os.environ and hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-int(os.environ["BENCH_CORES"]) :])
