"""What the sources of this library claim, measured. One folder per source, one file per claim."""

from ._claim import KEYS as KEYS
from ._claim import SOURCES as SOURCES
from ._claim import Budget as Budget
from ._claim import Claim as Claim
from ._claim import Measured as Measured
from ._claim import Role as Role
from ._claim import Row as Row
from ._claim import Verdict as Verdict
from ._claim import at_least as at_least
from ._claim import at_most as at_most
from ._claim import equals as equals
from ._claim import judge as judge
from ._registry import Entry as Entry
from ._registry import Registry as Registry
from ._registry import collect as collect

MODULES: dict[str, dict[str, tuple[str, ...]]] = {
    "invariance": {
        "generalised_inverse": ("generalised-inverse",),
        "lemma_1": ("lemma-1",),
        "theorem_1": ("theorem-1",),
        "proofs": ("proofs",),
        "definitions": ("definitions",),
        "theorem_2": ("theorem-2",),
        "example_1": ("example-1",),
        "figure_eight": ("example-2", "figure-eight-numbers", "figure-eight-reason"),
        "parameter_space": ("parameter-space", "remark-2"),
        "constraints": ("constraints",),
        "woodbury": ("woodbury",),
        "trajectory": ("trajectory",),
        "proposition_1": ("proposition-1",),
        "proposition_2": ("proposition-2",),
        "minimum_norm": ("minimum-norm",),
    },
    "abstract": {
        "independence": ("independence",),
        "singular": ("singular-point",),
        "tikhonov": ("tikhonov",),
    },
    "depth": {
        "lemma_1": ("depth-lemma-1",),
        "lemma_2": ("depth-lemma-2",),
        "theorem_1": ("depth-theorem-1",),
        "theorem_2": ("depth-theorem-2",),
        "theorem_3": ("depth-theorem-3",),
        "theorem_4": ("depth-theorem-4",),
        "margins": ("depth-margins",),
        "low_rank": ("depth-low-rank",),
        "statement_invariance": ("depth-invariance",),
        "statement_completion": ("depth-completion",),
        "normalisation": ("depth-normalisation",),
        "ols": ("depth-ols",),
        "ols_direction": ("depth-ols-direction",),
        "parametrisations": ("depth-parametrisations",),
        "train_fisher": ("depth-train-fisher",),
        "population_fisher": ("depth-test-fisher",),
        "noisy_labels": ("depth-noisy-labels",),
        "stochastic": ("depth-stochastic",),
        "wasserstein": ("depth-wasserstein",),
        "initialisation": ("depth-initialisation",),
        "proliferation": ("depth-proliferation",),
        "diagonal_network": ("depth-diagonal-network",),
        "factorisation": ("depth-factorisation",),
        "singular_fisher": ("depth-singular-fisher",),
        "stability": ("depth-stability",),
        "counterexample": ("depth-counterexample",),
        "typos": ("depth-typos",),
        "figure_1": ("depth-figure-1",),
        "figure_2": ("depth-figure-2",),
        "figure_3": ("depth-figure-3",),
        "figure_4": ("depth-figure-4",),
        "chance": ("depth-chance",),
        "structure": ("depth-structure",),
        "figure_5": ("depth-figure-5",),
        "grid_search": ("depth-grid-search",),
        "figure_6": ("depth-figure-6",),
    },
    "lecture": {
        "rosenbrock": ("rosenbrock", "rosenbrock-valley"),
        "proximal": ("proximal-implicit",),
        "mirror": ("mirror-descent",),
        "approximations": ("proximal-natural", "proximal-newton"),
        "trust_region": ("trust-region",),
        "kl": ("kl-divergence",),
        "gaussian": ("gaussian-coordinates",),
        "pullback_metric": ("pullback-metric",),
        "function_distance": ("function-distance",),
        "products": ("products",),
        "bregman": ("bregman-order", "bregman-convex"),
        "fisher": ("true-fisher", "fisher-derivation"),
        "units": ("units", "dimensions"),
        "duality": ("duality",),
        "invariance": ("first-order-invariance", "affine-invariance", "output-layer"),
    },
    "ours": {
        "newton_flow": ("newton-flow",),
        "limit_direction": ("limit-direction",),
        "singular_metric": ("singular-metric",),
        "singularities": ("singularities",),
        "glm": ("glm-irls",),
        "saturation": ("saturation",),
        "parametrisation": ("parametrisation",),
        "one_manifold": ("one-manifold",),
        "min_l1": ("min-l1",),
        "batch_fisher": ("batch-fisher",),
        "masked_completion": ("masked-completion",),
        "masked_steps": ("masked-steps",),
        "commuting": ("commuting-completion",),
        "peak": ("peak",),
        "full_rank_solver": ("full-rank-solver",),
    },
}
"""Source -> module -> names of its claims, in reading order."""

REGISTRY = collect(MODULES, __name__)
"""All claims by name, in reading order. A claim is imported when it is requested."""
