"""The geometries of the outputs, one a file."""

from ._base import AbstractLikelihood as AbstractLikelihood
from ._base import AbstractMetric as AbstractMetric
from ._base import AbstractRoot as AbstractRoot
from ._bernoulli import Bernoulli as Bernoulli
from ._categorical import Categorical as Categorical
from ._euclidean import Euclidean as Euclidean
