r"""`Dampable`: a pseudo-inverse to be damped after factorising, \(1/s^2 \to 1/(s^2 + λ)\).

Damping commutes neither with a common factor of \(A\) nor with the weights of its rows, so neither
may be divided out. Step rules that search for λ factorise with this inverse. A rule that knows the
least λ of a step declares it, and a solver may then factorise once per λ, and more cheaply.
"""

import dataclasses
from typing import Any, ClassVar

from ._base import AbstractInverse


class Dampable(AbstractInverse):
    """Another inverse, with its weights and scale left in place."""

    undamped: AbstractInverse
    least: Any = None
    """The least λ that will be asked for; `None` if that is not known."""
    awaits_damping: ClassVar[bool] = True

    @property
    def gauge(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.undamped.gauge

    @property
    def least_damping(self):
        return self.least

    def damped_from(self, least):
        return dataclasses.replace(self, least=least)

    def filter(self, s, cutoff):
        return self.undamped.filter(s, cutoff)

    def cutoff(self, largest, shape):
        return self.undamped.cutoff(largest, shape)

    def kept(self, s, cutoff):
        return self.undamped.kept(s, cutoff)

    @property
    def pseudo_inverse(self):
        return self.undamped.pseudo_inverse

    @property
    def truncates(self):
        return self.undamped.truncates

    @property
    def cancels_weights(self):
        return False
