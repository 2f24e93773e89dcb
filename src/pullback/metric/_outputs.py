"""How metrics read outputs and targets: one array, leaves with names, targets like outputs."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from .._base.tree import Structure, is_coordinate, split, structure
from .._base.types import Outputs, OutputVector


def one_array(z: Outputs, owner: str, what: str, instead: str) -> tuple[Array, Structure]:
    """The only floating array of the outputs."""
    leaves = jax.tree.leaves(split(z)[0])
    if len(leaves) != 1 or leaves[0].ndim == 0:
        raise ValueError(
            f"{owner} takes {what}, got outputs of shapes {[x.shape for x in leaves]}. {instead}"
        )
    return leaves[0], structure(z)


class Named(eqx.Module):
    """Outputs whose floating leaves have names: keys of a dictionary or fields of a named tuple."""

    like: Structure = eqx.field(static=True)
    names: tuple[str, ...] = eqx.field(static=True)

    def get(self, tree: OutputVector) -> dict[str, Array]:
        """The leaves by their names."""
        leaves, treedef = jax.tree.flatten(split(tree)[0])
        if treedef != self.like.treedef:
            raise ValueError(f"expected a tree {self.like.treedef}, got {treedef}.")
        return dict(zip(self.names, leaves, strict=True))

    def put(self, **arrays: Array) -> OutputVector:
        """The vector or covector with the given leaves."""
        flat = zip(self.names, self.like.shapes, self.like.dtypes, strict=True)
        return jax.tree.unflatten(
            self.like.treedef, [arrays[n].reshape(s).astype(d) for n, s, d in flat]
        )


def named(z: Outputs, owner: str, names: tuple[str, ...]) -> Named:
    """The reader of outputs with named leaves; raises a `ValueError` if the names differ."""
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(split(z)[0])]
    found = tuple(
        str(getattr(p[-1], "key", getattr(p[-1], "name", ""))) if p else "" for p in paths
    )
    if sorted(found) != sorted(names):
        example = "{" + ", ".join(f"'{n}': ..." for n in names) + "}"
        got = ", ".join(jax.tree_util.keystr(p) or "one array" for p in paths)
        raise ValueError(
            f"{owner} takes outputs {example} (or a named tuple with these fields), got floating "
            f"leaves: {got or 'none'}."
        )
    return Named(structure(z), found)


def mean_and_covariance(z: Outputs, owner: str) -> tuple[Named, Array, Array]:
    """The reader, and mean and symmetrised covariance as arrays (b, d) and (b, d, d)."""
    reader = named(z, owner, ("mean", "covariance"))
    leaves = reader.get(z)
    mean = leaves["mean"]
    covariance = leaves["covariance"]
    if mean.ndim == 0 or covariance.shape != (*mean.shape, mean.shape[-1]):
        raise ValueError(
            f"{owner} takes 'mean' of shape (..., d) and 'covariance' of shape (..., d, d), got "
            f"{mean.shape} and {covariance.shape}."
        )
    d = mean.shape[-1]
    covariance = covariance.reshape(-1, d, d)
    return reader, mean.reshape(-1, d), symmetric(covariance)


def symmetric(matrix: Array) -> Array:
    """The symmetric part, over leading axes."""
    return (matrix + jnp.swapaxes(matrix, -1, -2)) / 2


def targets_like(z: Outputs, targets: Any, owner: str) -> PyTree:
    """Targets as a tree like the coordinates of `z`, with their shapes and dtypes."""
    coordinates = split(z)[0]
    if jax.tree.structure(targets) == jax.tree.structure(z):
        targets = jax.tree.map(lambda s, y: y if is_coordinate(s) else None, z, targets)

    wrong = (
        f"{owner} targets must have the structure {jax.tree.structure(coordinates)} of the "
        f"outputs, got {jax.tree.structure(targets)}."
    )

    def one(s, y):
        if isinstance(y, dict):
            raise ValueError(wrong)
        y = jnp.asarray(y)
        if jnp.issubdtype(y.dtype, jnp.complexfloating):
            raise ValueError(
                f"{owner} targets must be real like the outputs, got {y.dtype}: give real and "
                "imaginary parts, or a loss that takes complex targets, Composite(model, "
                "loss=lambda z, y: ...)."
            )
        if y.shape != s.shape:
            raise ValueError(
                f"{owner} targets must have the shape {s.shape} of the outputs, got {y.shape}."
            )
        return y.astype(s.dtype)

    try:
        leaves = jax.tree.structure(coordinates).flatten_up_to(targets)
    except (ValueError, TypeError) as error:
        raise ValueError(wrong) from error
    return jax.tree.map(
        one, coordinates, jax.tree.unflatten(jax.tree.structure(coordinates), leaves)
    )
