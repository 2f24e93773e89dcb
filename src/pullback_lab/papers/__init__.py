"""The laboratory: what the sources of this library claim, measured. One folder a source, one file a
claim.
"""

import functools
import importlib
from collections.abc import Mapping, Sequence

from ._claim import SOURCES as SOURCES
from ._claim import Budget as Budget
from ._claim import Claim as Claim
from ._claim import Measured as Measured
from ._claim import Role as Role
from ._claim import Row as Row
from ._claim import Verdict as Verdict
from ._claim import judge as judge

# Folder -> its modules, in reading order: one line a claim.
MODULES: dict[str, tuple[str, ...]] = {
    "invariance": (
        "lemma_1",
        "theorem_1",
        "proofs",
        "definitions",
        "theorem_2",
        "example_1",
        "figure_eight",
        "parameter_space",
        "constraints",
        "woodbury",
        "trajectory",
        "proposition_1",
        "proposition_2",
        "minimum_norm",
    ),
    "abstract": (
        "independence",
        "singular",
        "tikhonov",
    ),
    "depth": (
        "lemma_1",
        "lemma_2",
        "theorem_1",
        "theorem_2",
        "theorem_3",
        "theorem_4",
        "statement_invariance",
        "statement_completion",
        "normalisation",
        "newton_flow",
        "limit_direction",
        "ols",
        "ols_direction",
        "parametrisations",
        "train_fisher",
        "population_fisher",
        "wasserstein",
        "initialisation",
        "proliferation",
        "diagonal_network",
        "factorisation",
        "singular_fisher",
        "stability",
        "counterexample",
        "typos",
        "figure_1",
        "figure_2",
        "figure_3",
        "figure_4",
        "chance",
        "structure",
        "figure_5",
        "figure_6",
    ),
    "lecture": (
        "rosenbrock",
        "proximal",
        "mirror",
        "approximations",
        "gaussian",
        "pullback_metric",
        "function_distance",
        "products",
        "bregman",
        "fisher",
        "units",
        "duality",
        "invariance",
    ),
    "ours": (
        "singular_metric",
        "glm",
        "saturation",
        "parametrisation",
        "min_l1",
        "masked_completion",
        "peak",
        "full_rank_solver",
    ),
}


def collect(modules: Mapping[str, Sequence[str]], package: str = __name__) -> dict[str, Claim]:
    """Import modules and gather their claims by name; two of one name are refused."""
    found: dict[str, Claim] = {}
    for folder, names in modules.items():
        for name in names:
            module = importlib.import_module(f"{package}.{folder}.{name}")
            for claim in getattr(module, "CLAIMS", None) or (module.CLAIM,):
                if claim.name in found:
                    raise ValueError(
                        f"two claims are called {claim.name!r}; the second is in {folder}/{name}.py."
                    )
                if claim.source != folder:
                    raise ValueError(
                        f"{folder}/{name}.py: the claim {claim.name!r} names the source {claim.source!r}."
                    )
                found[claim.name] = claim
    return found


@functools.cache
def claims() -> dict[str, Claim]:
    """All claims by name, in reading order. Imports their modules."""
    return collect(MODULES)
