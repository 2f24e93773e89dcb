"""Runs of `trpo.py` that are kept in a folder, so that a comparison resumes."""

import hashlib
from pathlib import Path

import numpy as np
from _pictures import option
from _policies import train


def kept(name, method, seed, total):
    """A run: steps, returns and divergences, read from the folder of runs if it is there."""
    folder = option("keep", "")
    if not folder:
        return train(name, method, seed, total)
    # Runs of other settings or of other code are not read.
    sources = (Path(__file__).parent / f"_{x}.py" for x in ("policies", "environments"))
    code = hashlib.sha256(b"".join(x.read_bytes() for x in sources)).hexdigest()[:8]
    path = Path(folder) / f"{name}-{method.replace(' ', '-')}-{seed}-{total or 'all'}-{code}.npy"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        run = train(name, method, seed, total)
        part = path.with_suffix(".part.npy")
        np.save(part, run)
        part.rename(path)
    return np.load(path)
