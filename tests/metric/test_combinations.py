"""Products, sums, masks and weights of metrics."""

import jax
import jax.numpy as jnp
import numpy as np
from registry_metrics import compiled, dense, normal, positive_definite

from pullback import metric as m
from pullback._base.tree import all_finite


def test_combinations_forward_what_they_are():
    singular, graded, plain = m.Categorical(), m.Poisson(), m.Euclidean()
    flags = lambda x: (x.nonsingular, x.graded, x.couples_samples, x.has_divergence, x.event_ndim)
    assert flags(m.Product((singular, plain))) == (False, True, False, True, 1)
    assert flags(m.Product((plain, plain))) == (True, False, False, True, 0)
    assert flags(m.Sum((singular, plain))) == (True, True, False, True, 1)
    assert flags(m.Sum((plain, m.Riemannian(jnp.diag)))) == (True, False, False, False, None)
    assert flags(m.Weighted(m.Scores(), 1.0)) == (False, False, True, True, None)
    assert flags(m.Weighted(graded, 1.0)) == (True, True, False, True, 0)
    assert flags(m.Masked(graded, True)) == (False, True, False, True, 0)


def test_product_hands_out_targets_part_by_part_or_whole():
    seen = m.EmpiricalFisher(lambda z, y: jnp.sum(z) * jnp.sum(y))
    z = {"a": normal(2), "b": normal(1)}
    part = m.Product({"a": seen, "b": m.Euclidean()}).observe(
        {"a": jnp.array(3.0), "b": None}, jnp.asarray(0)
    )
    whole = m.Product({"a": seen, "b": m.Euclidean()}).observe(
        jnp.array([1.0, 1.0]), jnp.asarray(0)
    )
    np.testing.assert_allclose(part.root(z).roots[0].factor[:, 0], [3.0, 3.0])
    np.testing.assert_allclose(whole.root(z).roots[0].factor[:, 0], [2.0, 2.0])


def test_sum_keeps_the_grading_of_its_parts():
    z = jnp.array([300.0, 0.0])
    root = compiled(m.Sum((m.Bernoulli(), m.Euclidean(1.0))).root, z)
    np.testing.assert_allclose(root.log_scale, [-150.0, -np.log(2), 0.0, 0.0], rtol=1e-14)
    assert all_finite(root.unit_lift(jnp.ones(2)))


def test_a_mask_on_whole_factors_is_exact_and_one_that_cuts_them_is_dense():
    z, keep = 60.0 * normal(2, 3), jnp.array([True, False])
    rows = compiled(m.Masked(m.Categorical(), keep).root, z)
    assert rows.inverse is None
    c = compiled(m.Categorical().apply, z, normal(2, 3, seed=1))
    np.testing.assert_allclose(
        *compiled(
            lambda: (rows.unit_lift(c).reshape(2, 2)[0], m.Categorical().root(z[0]).unit_lift(c[0]))
        ),
        rtol=1e-12,
    )
    cut = m.Masked(m.Categorical(), jnp.array([[True, True, False]]))
    assert jax.eval_shape(cut.root, z).inverse is not None
    covariance = positive_definite(3)
    kept = m.Masked(m.Gaussian(covariance), jnp.array([True, True, False]))
    np.testing.assert_allclose(
        dense(kept, normal(3))[:2, :2], np.linalg.inv(covariance)[:2, :2], rtol=1e-12
    )


def test_weight_may_be_traced():
    z = normal(2)
    value = jax.jit(lambda w: m.Weighted(m.Euclidean(), w).root(z).log_scale)
    np.testing.assert_allclose(value(4.0), np.log(2.0), rtol=1e-14)
    assert np.isnan(value(-1.0)).all() and np.isnan(value(0.0)).all()
