"""A few hundred fuzzed problems, another few hundred each day; `make fuzz` runs thousands."""

import datetime
import os
from pathlib import Path

import pytest

from tests.fuzz import judge, run
from tests.fuzz.generate import EACH
from tests.fuzz.known import KNOWN
from tests.fuzz.problem import dump, load

SEED = int(os.environ.get("SEED") or datetime.date.today().strftime("%Y%m%d"))
STRUCTURES = 10
FOUND = sorted((Path(__file__).parent / "found").glob("*.json"))


@pytest.mark.parametrize("number", range(STRUCTURES))
def test_fuzz(number):
    """Values of one structure: right or refused."""
    print(f"fuzz: SEED={SEED}")
    records = [run.one(SEED, number * EACH + i) for i in range(EACH)]
    bad = run.unexpected({record["index"]: record for record in records})
    assert not bad, "\n".join(run.line_of(record) for record in bad)


def _case(path):
    marks = []
    if path.stem in KNOWN:
        marks = [pytest.mark.xfail(strict=True, reason=KNOWN[path.stem].why)]
    return pytest.param(path, id=path.stem, marks=marks)


@pytest.mark.parametrize("path", [_case(path) for path in FOUND])
def test_found(path):
    """What was once wrong, minimised; mended, or expected to fail as long as it is known."""
    verdict = judge.judge(load(path.read_text()))
    assert verdict.outcome in ("right", "refused"), verdict.detail


def test_a_problem_survives_json():
    problem = run.problem(3, 17)
    assert dump(load(dump(problem))) == dump(problem)


def test_every_known_failure_has_a_problem():
    assert set(KNOWN) <= {path.stem for path in FOUND}
