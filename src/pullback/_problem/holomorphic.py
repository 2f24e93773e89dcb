r"""A holomorphic model, declared and checked: \(J\) is complex linear, \(J(\mathrm{i}\delta) =
\mathrm{i}J(\delta)\).

The rows of the imaginary part of an output are then \(\mathrm{i}\) times those of its real part, as
pairs (`_base/pairs.py`), and need not be computed.
"""

from typing import Any

import jax

from .._base.pairs import Pairs, is_complex
from .._base.tree import Structure, split
from .._base.types import Outputs

CURE = "Leave holomorphic=True out of Composite(...), which is then right at twice the work."


def check_complex(params: Structure, outputs: Outputs, pairs: Pairs | None) -> None:
    """Raise a `ValueError` unless all parameters and all outputs are complex."""
    named = zip(params.names, params.dtypes, strict=True)
    real: list[Any] = [f"{name} ({dtype})" for name, dtype in named if not is_complex(dtype)]
    if real:
        raise ValueError(
            "Composite(holomorphic=True): all parameters must be complex, and "
            f"{', '.join(real)} is real. Convert it, x.astype(complex). {CURE}"
        )
    if pairs is None or sum(pairs.complex) < len(jax.tree.leaves(split(outputs)[0])):
        raise ValueError(
            f"Composite(holomorphic=True): all outputs must be complex, and some are real. {CURE}"
        )
