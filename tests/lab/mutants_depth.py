"""Mutants of the claims on depth, for `test_mutants.py`: name of the claim -> what is broken, how."""

import importlib
from collections.abc import Callable

import jax
import pytest

from pullback_lab.papers.depth import _figure_flows

PAPERS = "pullback_lab.papers."
Mutant = Callable[[pytest.MonkeyPatch], None]


def instead(where: str, value) -> Mutant:
    """Another object in place of the one at a path."""
    return lambda patch: patch.setattr(where, value)


def scaled(where: str, factor: float = 1.01, shift: float = 0.0) -> Mutant:
    """A function, or a method of a class, whose numbers are scaled and shifted."""

    def mutate(patch):
        module, parts = where, []
        while True:
            try:
                original = importlib.import_module(module)
                break
            except ModuleNotFoundError:
                module, _, part = module.rpartition(".")
                parts.insert(0, part)
        for part in parts:
            original = getattr(original, part)
        change = lambda v: factor * v + shift if hasattr(v, "dtype") or type(v) is float else v
        patch.setattr(where, lambda *a, **k: jax.tree.map(change, original(*a, **k)))

    return mutate


def shallow(task, weights, *rest, **options):
    """The Euclidean flow of the first layer alone."""
    return EUCLIDEAN_FLOW(task, weights[:1], *rest, **options)


EUCLIDEAN_FLOW = _figure_flows.euclidean_flow

MUTANTS: dict[str, tuple[str, Mutant]] = {
    "depth-margins": (
        "the networks have one layer",
        instead(PAPERS + "depth.margins.euclidean_flow", shallow),
    ),
    "depth-low-rank": (
        "the least nuclear norm is that of the truth",
        instead(PAPERS + "depth.low_rank.minimum_nuclear_norm", lambda target, mask: (target, 0.0)),
    ),
    "one-manifold": (
        "the natural gradient of diagonal networks leaves the row space by 0.001",
        scaled("pullback.linear.Diagonal.natural_gradient", 1.0, 1e-3),
    ),
}
