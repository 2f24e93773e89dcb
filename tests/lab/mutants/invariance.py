"""Mutants of the claims on van Oostrum, Müller, Ay."""

import dataclasses

import jax.numpy as jnp
import numpy as np

from pullback_lab.papers._inverses import projector
from pullback_lab.papers.invariance import figure_eight

from ._tools import (
    CUT,
    DAMPED,
    NEVER_PROPER,
    PAPERS,
    PLAIN,
    STRONGER,
    Mutant,
    called,
    instead,
    made,
    scaled,
)


def euclidean_projector(e, metric, rank):
    """The projection, orthogonal in the Euclidean metric."""
    return projector(e, np.eye(len(metric)), rank)


def unconstrained(step):
    """A step whose parameters are those before the projection."""

    def taken(*args, **options):
        found = step(*args, **options)
        return dataclasses.replace(found, params=found.free)

    return taken


INVARIANCE: dict[str, dict[str, Mutant]] = {
    "lemma-1": CUT,
    "theorem-1": DAMPED | CUT,
    "proofs": {
        "the projection is Euclidean": instead(
            PAPERS + "invariance.proofs.projector", euclidean_projector
        )
    },
    "definitions": DAMPED,
    "theorem-2": DAMPED,
    "example-1": {
        "0 is on the edge of the model, φ = (s, t²)": instead(
            PAPERS + "invariance.example_1.phi", lambda x: jnp.stack([x[0], x[1] ** 2])
        )
    }
    | NEVER_PROPER,
    "example-2": DAMPED,
    "figure-eight-numbers": {
        "the interval is the printed one": instead(
            PAPERS + "invariance.figure_eight.DOMAIN", figure_eight.PRINTED_DOMAIN
        )
    },
    "figure-eight-reason": DAMPED,
    "parameter-space": DAMPED,
    "remark-2": {
        "the gauge is ignored": called("pullback.natural_gradient", inverse=lambda _: None)
    },
    "constraints": {"the step is not projected": made("pullback.constrained_step", unconstrained)},
    "woodbury": STRONGER,
    "trajectory": PLAIN,
    "proposition-1": {
        "boxes have a length for an area": scaled(
            PAPERS + "invariance.proposition_1.area", 1.0, 1.0
        )
    },
    "proposition-2": {
        "f is linear": instead(
            PAPERS + "invariance.proposition_2.cube", lambda theta, centre: theta + centre
        )
    },
    "minimum-norm": DAMPED | CUT,
}
