"""Exact natural gradients of any differentiable model, overparametrised or not."""

from ._lazy import attach
from ._xla import secure

secure()

# The names are listed in __init__.pyi; JAX is imported with the first of them, so that `pullback --help` need not wait for it.
__getattr__, __dir__, __all__ = attach(__name__, __file__)

__version__ = "0.1.0"
