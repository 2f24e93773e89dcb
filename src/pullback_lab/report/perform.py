"""Runs one claim: measures, judges, draws. An exception becomes a result, too."""

import inspect
import io
import json
import sys
import time
import traceback
from collections.abc import Mapping
from typing import Any

from ..papers import Budget, Claim, Row, Verdict, judge
from .result import Result, decode, encode
from .stamp import now, stamp

FORMATS: dict[str, dict[str, Any]] = {"png": {"dpi": 120}, "svg": {"metadata": {"Date": None}}}
"""The formats of a figure, with the options of matplotlib. Without its date, an SVG file of the
same figure has the same bytes.
"""


def perform(claim: Claim, budget: Budget) -> tuple[Result, dict[str, bytes]]:
    """The result of a claim, and its figure as PNG and SVG."""
    clock = time.perf_counter()
    rows: tuple[Row, ...] = ()
    data: Mapping[str, Any] = {}
    verdict = None
    error = None
    pictures: dict[str, bytes] = {}
    try:
        measured = claim.measure(budget)
        rows = tuple(measured.rows)
        verdict = judge(rows)
        if claim.draw is not None and measured.data:
            # The figure is drawn from what is read back, so that the file suffices to redraw it.
            data = decode(json.loads(json.dumps(encode(measured.data))))
            pictures = render(claim, data)
    except (Exception, SystemExit):
        error = traceback.format_exc(limit=-6)
        verdict = None
    seconds = time.perf_counter() - clock
    return describe(claim, budget, rows, verdict, seconds, data, error), pictures


def describe(
    claim: Claim,
    budget: Budget,
    rows: tuple[Row, ...] = (),
    verdict: Verdict | None = None,
    seconds: float = 0.0,
    data: Mapping[str, Any] = {},
    error: str | None = None,
) -> Result:
    """A result that carries the description of its claim."""
    return Result(
        name=claim.name,
        source=claim.source,
        place=claim.place,
        statement=claim.statement,
        quotation=claim.quotation,
        correction=claim.correction,
        stands=claim.stands,
        remark=claim.remark,
        keys=claim.keys,
        recorded=claim.verdict,
        rows=rows,
        verdict=verdict,
        seconds=seconds,
        stamp=stamp(claim, budget),
        date=now(),
        key_number=claim.key_number,
        derivation=inspect.cleandoc(sys.modules[claim.run.__module__].__doc__ or ""),
        code=claim.run.__module__,
        error=error,
        alt=_alt(claim),
        data=data,
    )


def _alt(claim: Claim) -> str:
    """The alt text of the figure: the first paragraph of the docstring of `claim.draw`."""
    words = (getattr(claim.draw, "__doc__", None) or "").strip().split("\n\n")[0]
    return " ".join(words.split()) or claim.statement


def render(claim: Claim, data: Mapping[str, Any]) -> dict[str, bytes]:
    """The figure of a claim, format -> content."""
    import matplotlib

    assert claim.draw is not None
    with matplotlib.rc_context({"svg.hashsalt": claim.name, "svg.fonttype": "none"}):
        figure = claim.draw(data)
        if isinstance(figure, tuple):  # `pullback.plot` returns (figure, axes)
            figure = figure[0]
        pictures = {}
        for kind, options in FORMATS.items():
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind, facecolor="white", **options)
            pictures[kind] = buffer.getvalue()
    return pictures
