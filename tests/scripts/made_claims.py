"""A registry of claims made for tests of the machinery; what they do is told by files in the folder
MADE_CLAIMS.
"""

import os
import signal
import time
from pathlib import Path

import numpy as np

from pullback_lab.papers import Claim, Measured, Verdict
from pullback_lab.papers._claim import Role, at_most

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


def claims():
    """Name -> claim."""
    made = (
        Claim(
            "good",
            "ours",
            "page 1",
            "It holds & it is <measured>.",
            Verdict.HOLDS,
            _good,
            figure=_draw,
        ),
        Claim("wrong", "ours", "page 2", "It is not so.", Verdict.HOLDS, _wrong),
        Claim(
            "corrected",
            "lecture",
            "page 3",
            "As printed.",
            Verdict.CORRECTED,
            _corrected,
            correction="As meant.",
        ),
        Claim("broken", "lecture", "page 4", "It raises.", Verdict.HOLDS, _broken),
        Claim("dying", "lecture", "page 5", "It dies.", Verdict.HOLDS, _dying),
        Claim("slow", "depth", "page 6", "It takes long.", Verdict.HOLDS, _slow),
    )
    return {claim.name: claim for claim in made}
