"""Which cases of a product `make test` runs: a sample that changes with the seed.

The seed is `SEED` of the environment, or else the number of commits, so that each commit runs
another sample and a checkout always runs the same one. A case is taken if its place plus the seed
is a multiple of some n: n consecutive seeds run every case. `make test-all` runs all of them.
"""

import functools
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


@functools.cache
def seed() -> int:
    """The seed of this run."""
    if given := os.environ.get("SEED"):
        return int(given)
    words = ["git", "-C", str(ROOT), "rev-list", "--count", "HEAD"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError:
        return 0
    return int(done.stdout) if done.returncode == 0 else 0


def taken(place: int, every: int, seed: int) -> bool:
    """Whether the case at a place of its product is in the sample of a seed."""
    return (place + seed) % every == 0
