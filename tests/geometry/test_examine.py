"""Definition 6 as measured numbers: what kind of point a point is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import normal

import pullback as pb
from pullback import testing

MODEL = testing.tied_weights(2, 2, 2, jax.random.key(0))
BATCH = (normal(3, 2, seed=1), normal(3, 2, seed=2))
PROBLEM = pb.Composite(MODEL.function, lambda z, y: jnp.sum((z - y) ** 2, axis=1) / 2)


def test_a_proper_point_and_its_two_kernels():
    page = pb.examine(PROBLEM, MODEL.params, BATCH)
    dense = testing.reference_natural_gradient(PROBLEM, MODEL.params, BATCH)
    assert (
        page.proper
        and page.rank == np.linalg.matrix_rank(dense.jacobian) == page.seen_rank == dense.rank
    )
    assert (
        page.kernel.shape == (16, 16 - page.rank)
        and np.abs(dense.jacobian @ page.kernel).max() < 1e-13
    )
    assert page.unseen.shape[1] == 0 and np.allclose(
        page.spectrum, dense.spectrum[: page.spectrum.size]
    )
    assert "proper" in str(page) and "overparametrised" in str(page)
    assert len(page.plot()[1].lines) == 3


def test_directions_that_the_metric_does_not_see_are_told_apart():
    metric = pb.metric.Masked(pb.metric.Euclidean(), jnp.asarray([True, False]))
    page = pb.examine(pb.Composite(MODEL.function, PROBLEM.loss, metric), MODEL.params, BATCH)
    dense = testing.reference_natural_gradient(PROBLEM, MODEL.params, BATCH)
    assert (
        page.metric_rank == 3
        and page.seen_rank == 3
        and page.rank == 6
        and page.unseen.shape == (16, 3)
    )
    moved = dense.jacobian @ page.unseen
    assert np.abs(moved[0::2]).max() < 1e-12 and np.linalg.matrix_rank(moved[1::2]) == 3
    assert page.output_share < 1 and "3 of the metric" in str(page)


def test_improper_and_singular_points():
    # z = ab is not proper at the origin only; the figure eight crosses itself.
    product = pb.Composite(lambda p: p[0] * p[1], lambda z: z)
    assert pb.examine(product, jnp.asarray([1.0, 2.0])).proper
    page = pb.examine(product, jnp.zeros(2))
    assert (page.rank, page.generic_rank, page.proper) == (0, 1, False) and "not proper" in str(
        page
    )
    eight = pb.Composite(lambda p: jnp.stack([jnp.sin(2 * p[0]), jnp.sin(p[0])]), lambda z: z[0])
    crossing = pb.examine(eight, jnp.asarray([0.0]), other=jnp.asarray([np.pi]))
    assert (
        crossing.meeting.singular
        and np.isclose(crossing.meeting.angle, np.arccos(0.6))
        and "a singular point" in str(crossing)
    )
    elsewhere = pb.examine(eight, jnp.asarray([0.0]), other=jnp.asarray([1.0]))
    assert not elsewhere.meeting.same_point and "another point" in str(elsewhere)
    again = pb.examine(eight, jnp.asarray([0.3]), other=jnp.asarray([0.3 + 2 * np.pi]))
    assert again.meeting.same_point and not again.meeting.singular
    with pytest.raises(RuntimeError, match="`params` contains a NaN"):
        pb.examine(eight, jnp.asarray([np.nan]))
