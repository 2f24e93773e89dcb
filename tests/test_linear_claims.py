"""The claims that rest on `pullback.linear`: a quick run comes to the verdict on record, and its figure can be drawn from its data."""

import importlib

import jax
import numpy as np
import pytest

from pullback.papers._claim import Budget, judge

MODULES = (
    "depth.figure_4",
    "depth.figure_5",
    "depth.figure_6",
    "ours.full_rank_solver",
    "ours.masked_completion",
    "ours.min_l1",
    "ours.parametrisation",
    "ours.peak",
)


@pytest.mark.slow
@pytest.mark.parametrize("module", MODULES)
def test_a_quick_run_comes_to_the_verdict_on_record(module, tmp_path):
    claim = importlib.import_module(f"pullback.papers.{module}").CLAIM
    measured = claim.run(Budget(), jax.random.key(0))
    assert judge(measured.rows) is claim.verdict, [row for row in measured.rows if not row.holds]
    assert not claim.key_number or claim.key_number in [row.label for row in measured.rows]
    assert all(np.isfinite(row.measured) for row in measured.rows)
    if claim.figure is not None:
        np.savez(tmp_path / "data.npz", **measured.data)
        with np.load(tmp_path / "data.npz") as stored:
            claim.figure(dict(stored)).savefig(tmp_path / "figure.png")
