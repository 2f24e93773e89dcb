"""Mutants: what is broken for each claim, in words, and how.

`MUTANTS` maps the name of a claim to its mutants. A mutant breaks the subject of the claim: a
function of the library, or a helper of the claim that computes what is measured. Add those of a new
claim to the file of its source.
"""

from ._tools import Mutant as Mutant
from .abstract import ABSTRACT
from .depth import DEPTH
from .invariance import INVARIANCE
from .lecture import LECTURE
from .more import MORE
from .ours import OURS

MUTANTS: dict[str, dict[str, Mutant]] = {}
for group in (INVARIANCE, ABSTRACT, DEPTH, LECTURE, OURS, MORE):
    for name, mutants in group.items():
        MUTANTS[name] = MUTANTS.get(name, {}) | mutants
