"""A registry of claims made for tests of the machinery.

They count their runs in files in the folder MADE_CLAIMS.
"""

import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np

from pullback_lab.papers import Claim, Entry, Measured, Registry, Role, Verdict, at_most

FOLDER = Path(os.environ.get("MADE_CLAIMS", "."))


def _count(name):
    with (FOLDER / f"{name}.runs").open("a") as file:
        file.write("x")


def _good(budget, key):
    _count("good")
    rows = (at_most("error & <rest>", 1e-12, 1e-9), at_most("sane", 0.0, 1.0, Role.CONTROL))
    return Measured(
        rows,
        {"x": np.arange(3.0), "bad": np.array([np.nan, np.inf]), "pair": (1, 2.5), "name": "line"},
    )


def _draw(data):
    """A line that goes up."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3, 2))
    figure.subplots().plot(data["x"], data["x"])
    return figure


def _wrong(budget, key):
    _count("wrong")
    return Measured((at_most("error", float("nan"), 1e-9),))


def _corrected(budget, key):
    _count("corrected")
    return Measured(
        (at_most("as printed", 1.0, 1e-9), at_most("as meant", 0.0, 1e-9, Role.CORRECTED))
    )


def _broken(budget, key):
    _count("broken")
    raise ValueError("[/red] <boom>")


def _dying(budget, key):
    _count("dying")
    os.kill(os.getpid(), signal.SIGKILL)


def _slow(budget, key):
    _count("slow")
    for _ in range(600):
        if (FOLDER / "go").exists():
            break
        time.sleep(0.05)
    return Measured((at_most("seeds", budget.seeds, 10),))


def _homeless(budget, key):
    _count("homeless")
    shutil.rmtree(FOLDER / "report" / "claims")
    return Measured((at_most("error", 0.0, 1e-9),))


def _chancy(budget, key):
    import jax

    _count("chancy")
    with (FOLDER / "chancy.processes").open("a") as file:
        file.write(f"{os.getpid()}\n")
    return Measured((at_most("a number", jax.random.uniform(key), 0.5),))


def _claim(name, source, page, statement, run, verdict=Verdict.HOLDS, **options):
    place = f"page {page}"
    return Claim(
        name=name,
        source=source,
        place=place,
        statement=statement,
        verdict=verdict,
        run=run,
        **options,
    )


CLAIMS = (
    _claim("good", "ours", 1, "It holds & it is <measured>.", _good, draw=_draw),
    _claim("wrong", "ours", 2, "It is not so.", _wrong),
    _claim(
        "corrected",
        "lecture",
        3,
        "As printed.",
        _corrected,
        Verdict.CORRECTED,
        correction="As meant.",
        stands=True,
    ),
    _claim("broken", "lecture", 4, "It raises.", _broken),
    _claim("dying", "lecture", 5, "It dies.", _dying),
    _claim("slow", "depth", 6, "It takes long.", _slow),
    _claim("chancy", "depth", 8, "It depends on the key.", _chancy),
    _claim("homeless", "depth", 7, "Its folder vanishes.", _homeless),
)
REGISTRY = Registry({claim.name: Entry("made_claims", claim.source) for claim in CLAIMS})
