"""The subject of every claim is broken, and the verdict must change.

`pytest -m mutants -vv` runs the mutants, one line for each with the claim and what is broken.
"""

import jax
import pytest
from lab.mutants import MUTANTS

from pullback_lab.papers import REGISTRY, judge


def test_every_claim_has_a_mutant():
    assert sorted(name for name, mutants in MUTANTS.items() if mutants) == sorted(REGISTRY)


@pytest.mark.slow
@pytest.mark.mutants
@pytest.mark.parametrize(
    ("name", "what"),
    [
        pytest.param(name, what, id=f"{name}: {what}")
        for name, mutants in MUTANTS.items()
        for what in mutants
    ],
)
def test_a_mutant_changes_the_verdict(name, what, monkeypatch):
    jax.clear_caches()  # compiled programs would not notice what is broken inside them
    MUTANTS[name][what](monkeypatch)
    claim = REGISTRY[name]
    assert judge(claim.measure().rows) is not claim.verdict


@pytest.fixture(autouse=True, scope="module")
def forgotten():
    """Forgets the programs compiled with something broken."""
    yield
    jax.clear_caches()
