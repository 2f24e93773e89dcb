"""Mutants of the claims on the extended abstract of van Oostrum, Ay."""

from pullback_lab.papers.invariance import figure_eight

from ._tools import DAMPED, NEVER_PROPER, PAPERS, STRONGER, Mutant, instead

ABSTRACT: dict[str, dict[str, Mutant]] = {
    "independence": DAMPED,
    "singular-point": {
        "both parametrisations take the same branch": instead(
            PAPERS + "abstract.singular.psi", figure_eight.phi
        )
    }
    | NEVER_PROPER,
    "tikhonov": STRONGER,
}
