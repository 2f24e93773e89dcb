"""What XLA has to be told so that its numbers are right.

On the CPU, jaxlib 0.10 to 0.12 hands chains of products and sums to a library (YNN) as one fused
program, and some of these come out wrong, in silence: the gradient of a bias missing from a dot
product with a gradient, products with the Jacobian of a network of 1024 samples that are zero or
NaN (`tests/test_xla.py`). Single products are right, and are as fast. A later version may not know
the flag, and XLA ends the process at one that it does not know: there the test has to tell.
"""

import os
import sys
import warnings
from importlib.metadata import version

FLAG = "--xla_cpu_experimental_ynn_fusion_type"
SINGLE = "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"


def affected(jaxlib: str) -> bool:
    """Whether a version of jaxlib fuses wrongly."""
    return (0, 10) <= tuple(int(part) for part in jaxlib.split(".")[:2]) < (0, 13)


def secure() -> None:
    """Restrict the fusions, unless the user has chosen; warn if XLA has read its flags already."""
    flags = os.environ.get("XLA_FLAGS", "")
    if FLAG in flags or not affected(version("jaxlib")):
        return
    os.environ["XLA_FLAGS"] = f"{flags} {FLAG}={SINGLE}".strip()
    if _running():
        warnings.warn(
            f"jaxlib {version('jaxlib')} computes some products wrongly, and JAX was in use before pullback could tell it not to. Import pullback before "
            f"the first JAX array is made, or set XLA_FLAGS={FLAG}={SINGLE}.",
            RuntimeWarning,
            stacklevel=3,
        )


def _running() -> bool:
    # JAX has no public way to ask without starting a backend; should it keep its backends elsewhere
    # one day, nobody is warned.
    bridges = [
        module for name, module in list(sys.modules.items()) if name.endswith("_src.xla_bridge")
    ]
    return any(getattr(bridge, "_backends", None) for bridge in bridges)
