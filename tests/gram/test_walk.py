"""K, G and K y of every animal of the zoo, from its layers and by the generic route, in float64."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zoo import ZOO, sum_of_outputs

import pullback as pb
from pullback._gram.kernel import kernel, product
from pullback._gram.structured import find, structured_factors, structured_metric


@pytest.fixture(autouse=True)
def models_as_people_write_them():
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


def measured(animal):
    """K, G and K y by both routes, in one compilation."""

    @eqx.filter_jit
    def run(params, inputs):
        metric = pb.pullback(
            pb.Composite(animal.model, sum_of_outputs, pb.metric.Euclidean()), params, (inputs,)
        )
        rows = metric.whitened
        dense = rows.unit_rows()
        found, single = find(rows), find(rows, single=True)
        out = {}
        if found is not None:
            y = jnp.cos(jnp.arange(dense.shape[0], dtype=dense.dtype))
            out["kernel"] = (kernel(structured_factors(rows, found)), dense @ dense.T)
            out["product"] = (product(structured_factors(rows, found), y), dense @ (dense.T @ y))
        if single is not None:
            order = single.order
            out["metric"] = (structured_metric(rows, single), rows.gram()[order][:, order])
            assert sorted(order) == list(range(metric.size))
        return out

    return run(animal.params, animal.inputs)


@pytest.mark.parametrize("name", list(ZOO))
def test_zoo(name, monkeypatch):
    # Tiles of about five rows: as they are, these models would all fit in one.
    monkeypatch.setattr("pullback._gram.kernel.TILE", 8 * 5**2)
    animal = ZOO[name]()
    assert_leaves(animal)
    for what, (found, expected) in measured(animal).items():
        found, expected = (np.tril(x) if x.ndim == 2 else np.asarray(x) for x in (found, expected))
        assert np.abs(found - expected).max() <= 1e-12 * max(1.0, np.abs(expected).max()), what


def assert_leaves(animal):
    """The leaves that automatic differentiation is left with are those that were expected, and no
    others.
    """
    metric = pb.pullback(
        pb.Composite(animal.model, sum_of_outputs), animal.params, (animal.inputs,)
    )
    rows = metric.whitened
    found = find(rows)
    free = set(range(len(rows.structure.shapes))) if found is None else set(found.free)
    assert free == animal.free, found and found.walk.free
