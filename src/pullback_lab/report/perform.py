"""From a claim to its result: measure, judge, draw. What raises is a result too."""

import io
import json
import time
import traceback
from collections.abc import Mapping
from typing import Any

from ..papers import Budget, Claim, Row, Verdict, judge
from .result import Result, decode, encode
from .stamp import now, stamp

DOTS = 120


def perform(claim: Claim, budget: Budget) -> tuple[Result, dict[str, bytes]]:
    """The result of a claim and its picture as PNG and SVG."""
    clock, rows, data, verdict, error, pictures = time.perf_counter(), (), {}, None, None, {}
    try:
        rows, measured = claim.measure(budget)
        rows, verdict = tuple(rows), judge(rows)
        if claim.figure is not None and measured:
            # Drawn from what comes back from disk, so that the file is enough to draw it again.
            data = decode(json.loads(json.dumps(encode(measured))))
            pictures = draw(claim, data)
    except (Exception, SystemExit):
        error, verdict = traceback.format_exc(limit=-6), None
    return describe(claim, budget, rows, verdict, time.perf_counter() - clock, data, error), pictures


def describe(
    claim: Claim,
    budget: Budget,
    rows: tuple[Row, ...] = (),
    verdict: Verdict | None = None,
    seconds: float = 0.0,
    data: Mapping[str, Any] = {},
    error: str | None = None,
) -> Result:
    """A result with what the claim says about itself."""
    return Result(
        name=claim.name,
        source=claim.source,
        place=claim.place,
        statement=claim.statement,
        correction=claim.correction,
        recorded=claim.verdict,
        rows=rows,
        verdict=verdict,
        seconds=seconds,
        stamp=stamp(claim, budget),
        date=now(),
        key_number=claim.key_number,
        error=error,
        alt=_alt(claim),
        data=data,
    )


def _alt(claim: Claim) -> str:
    """What the picture shows, in words: how the function that draws it describes itself."""
    words = (getattr(claim.figure, "__doc__", None) or "").strip().split("\n\n")[0]
    return " ".join(words.split()) or claim.statement


def draw(claim: Claim, data: Mapping[str, Any]) -> dict[str, bytes]:
    """The picture of a claim, format -> content."""
    import matplotlib

    assert claim.figure is not None
    with matplotlib.rc_context({"svg.hashsalt": claim.name, "svg.fonttype": "none"}):
        figure = claim.figure(data)
        figure = figure[0] if isinstance(figure, tuple) else figure  # pullback.plot returns (figure, axes)
        pictures = {}
        for kind, options in (("png", {"dpi": DOTS}), ("svg", {"metadata": {"Date": None}})):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind, facecolor="white", **options)
            pictures[kind] = buffer.getvalue()
    return pictures
