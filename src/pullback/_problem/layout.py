"""Finds out how the samples of a batch are spread over devices, from the arrays themselves."""

from typing import Any

import equinox as eqx
import jax
from jax.sharding import PartitionSpec

from .._base.types import Params
from .._compat.devices import Layout, axes_of, put, sharding_of
from .batch import AnyBatch
from .problem import AbstractProblem


def find_layout(
    problem: AbstractProblem,
    params: Params,
    batches: tuple[AnyBatch | None, ...],
    common: Any,
    separable: bool = True,
) -> tuple[Layout | None, tuple[Any, Any]]:
    """Return where the samples are, and the arrays where a program for it wants them.

    It is `None` if all samples are on one device. Samples that are not separable are given to each
    device; `common`, which all devices need, too.
    """
    separable = separable and is_separable(problem, batches)
    layout = _layout(params, batches, separable)
    if layout is None:
        return None, (common, batches)
    return layout, (put(common, layout, PartitionSpec()), put(batches, layout, layout.samples))


def _layout(params: Params, batches: tuple[AnyBatch | None, ...], separable: bool) -> Layout | None:
    """Return where the samples are."""
    leaves = [x for x in jax.tree.leaves(batches) if eqx.is_array(x)]
    found = next((x for x in leaves if axes_of(x)), None)
    if found is None:
        return None
    names, sharding = axes_of(found, 0), sharding_of(found)
    assert sharding is not None
    _check_params(params, names)
    layout = Layout(sharding.mesh, names)
    divisible = all(x.ndim and x.shape[0] % layout.size == 0 for x in leaves)
    return layout if names and divisible and separable else Layout(sharding.mesh, ())


def is_separable(problem: AbstractProblem, batches: tuple[AnyBatch | None, ...]) -> bool:
    """Return whether each device can do its samples: all have some, and none needs the others."""
    parts = [part for batch in batches if batch is not None for part in batch.parts]
    mixed = any(term.coupled or term.stateful for term in problem.terms)
    return not mixed and all(part.inputs is not None for part in parts)


def _check_params(params: Params, names: tuple[str, ...]) -> None:
    """Raise a `ValueError` if a parameter is spread over the devices that share the samples."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        both = [name for name in axes_of(leaf) if name in names]
        if both:
            raise ValueError(
                f"params{jax.tree_util.keystr(path)} is sharded over the mesh axis {both[0]!r}, "
                "over which the samples of the batch are: each device needs all parameters. "
                "Copy them to every device, jax.device_put(params, NamedSharding(mesh, P())), or "
                "shard them over another axis."
            )
