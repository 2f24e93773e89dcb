"""Worked examples: what the sources of this library claim, measured. One folder a source, one file a claim."""

from ._example import Example as Example
from .invariance import figure_eight, lemma_1, minimum_norm, singular_metric, theorem_1, theorem_2, tikhonov
from .lecture import bregman, fisher, gaussian, rosenbrock
from .models import glm, saturation

EXAMPLES: tuple[Example, ...] = tuple(
    module.EXAMPLE
    for module in (
        lemma_1,
        theorem_1,
        theorem_2,
        figure_eight,
        minimum_norm,
        singular_metric,
        tikhonov,
        rosenbrock,
        gaussian,
        bregman,
        fisher,
        glm,
        saturation,
    )
)
"""All of them, in reading order."""
