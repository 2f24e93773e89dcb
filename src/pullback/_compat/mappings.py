"""Forgets compiled programs before Linux ends the process for having too many.

Each program that XLA compiles for the CPU takes some 300 memory mappings, of which Linux allows a
process 65 530; the first that is refused is a segmentation fault. About 200 programs suffice: a
sweep over sizes, or many fits with models that are written anew as lambdas.
"""

import warnings
from pathlib import Path

import jax

MAPS, LIMIT = Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")
FULL = 0.6
"""The fraction of the limit at which programs are forgotten: what is left holds 80 more."""
MORE = 0.05
"""The fraction by which mappings must have grown since: others may hold those that are left."""

_left = 0


class ProgramsWarning(UserWarning):
    """So many programs were compiled that all of them had to be forgotten."""


def forget_if_full() -> None:
    """Clear JAX's caches, with a warning, if the mappings of this process are nearly used up."""
    try:
        taken, allowed = MAPS.read_bytes().count(b"\n"), int(LIMIT.read_text())
    except (OSError, ValueError):
        # Another operating system, or a sandbox without /proc.
        return
    global _left
    if taken < max(FULL * allowed, _left + MORE * allowed):
        return
    jax.clear_caches()
    _left = left = MAPS.read_bytes().count(b"\n")
    warnings.warn(
        f"the programs compiled in this process take {taken} of the {allowed} memory mappings that "
        f"Linux allows; they were forgotten (jax.clear_caches(), {left} left) and will be compiled "
        "anew when needed. Fewer programs are compiled if sizes repeat, and if models and losses "
        "are defined once and not in a loop.",
        ProgramsWarning,
        stacklevel=4,
    )
