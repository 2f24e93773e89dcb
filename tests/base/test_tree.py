"""Trees as flat vectors: coordinates, carried leaves, dtypes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pullback._base.tree import (
    all_finite,
    coarsest_dtype,
    common_dtype,
    refuse_complex,
    split,
    structure,
)

TREE = {
    "a": jnp.arange(6.0).reshape(2, 3),
    "b": {"single": jnp.asarray([7.0], jnp.float32), "count": jnp.arange(2), "name": "carried"},
}


def test_a_tree_is_its_floating_leaves_in_one_vector():
    like = structure(TREE)
    assert like.size == 7 and like.sizes == (6, 1) and like.dtype == jnp.float64
    flat = like.ravel(TREE)
    assert flat.dtype == jnp.float64 and flat.tolist() == [0, 1, 2, 3, 4, 5, 7]
    back = like.unravel(flat)
    assert back["b"]["single"].dtype == jnp.float32 and back["b"]["count"] is None
    assert jax.tree.structure(back) == jax.tree.structure(split(TREE)[0])
    assert hash(like) == hash(structure(TREE)) and like == structure(TREE)
    shapes = jax.eval_shape(lambda: split(TREE)[0])
    assert structure(shapes) == like


def test_a_tree_without_floating_leaves_is_the_empty_vector():
    like = structure({"count": jnp.arange(2)})
    assert like.size == 0 and like.ravel({"count": jnp.arange(2)}).shape == (0,)
    assert jax.tree.leaves(like.unravel(jnp.zeros(0))) == [] and bool(all_finite("name"))


def test_a_tree_of_another_structure_is_named():
    with pytest.raises(ValueError, match=r"expected a tree .* with shapes \(\(2,\),\), got"):
        structure(jnp.ones(2)).ravel(jnp.ones(3))


def test_the_transpose_of_unravel_is_ravel():
    like = structure(TREE)
    v = jnp.linspace(-1.0, 1.0, 7)
    pulled = jax.linear_transpose(like.unravel, v)(like.unravel(v))[0]
    np.testing.assert_allclose(pulled, v, rtol=1e-7)


def test_dtypes_under_strict_promotion():
    half, single, double = (jnp.dtype(name) for name in ("bfloat16", "float32", "float64"))
    assert common_dtype(single, double) == double and coarsest_dtype(single, double) == single
    assert coarsest_dtype(double, half, single) == half


def test_complex_leaves_are_refused_and_finite_ones_found():
    with pytest.raises(ValueError, match=r"Simplex\(\): \['b'\] is complex \(complex128\)\. Use"):
        refuse_complex({"a": jnp.ones(1), "b": jnp.ones(1, complex)}, "Simplex()", "Use x.real.")
    refuse_complex(TREE, "Simplex()", "Use x.real.")
    assert bool(all_finite(TREE)) and not bool(all_finite({"a": jnp.asarray([1.0, jnp.nan])}))
