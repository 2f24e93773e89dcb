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


def test_how_a_page_prints_and_what_it_does_not_take():
    page = pb.examine(PROBLEM, MODEL.params, BATCH, nearby=0)
    assert repr(page) == "Examination(16 parameters, 6 outputs, rank 6, proper)"
    assert page._repr_html_().startswith("<table>") and "overparametrised" in page._repr_html_()
    assert repr(pb.examine(PROBLEM, MODEL.params, BATCH, other=MODEL.params).meeting).startswith(
        "Meeting(the same point of the model with the same tangent span"
    )
    for words, bad in {
        "nearby must be an integer of at least 0": {"nearby": -1},
        "radius must be positive": {"radius": 0.0},
        "rtol must be finite and >= 0": {"rtol": -1.0},
        "other must have the structure": {"other": {"w": jnp.ones(2)}},
    }.items():
        with pytest.raises(ValueError, match=words):
            pb.examine(PROBLEM, MODEL.params, BATCH, **bad)


def test_an_absent_sample_is_not_examined():
    x, y = BATCH
    present = pb.examine(PROBLEM, MODEL.params, (x[:2], y[:2]))
    measure = pb.Weights(jnp.asarray([0.5, 0.5, 0.0]))
    problem = pb.Composite(MODEL.function, PROBLEM.loss, measure=measure)
    page = pb.examine(problem, MODEL.params, (x.at[2].set(jnp.nan), y))
    assert (page.rank, page.seen_rank, page.metric_rank) == (4, 4, 4) and page.proper
    assert np.allclose(page.spectrum[:4], present.spectrum) and np.all(page.spectrum[4:] < 1e-14)


def test_directions_that_are_rounding_inside_the_model_are_told_from_a_second_precision():
    """The derivative of the second output is zero; its two terms cancel to rounding."""

    def model(p):
        u = 3 * p[1]
        return jnp.stack([p[0], 1e4 * (jax.nn.sigmoid(u) + jax.nn.sigmoid(-u))])

    problem = pb.Composite(model, lambda z: jnp.sum(z**2), pb.metric.Euclidean())
    page = pb.examine(problem, jnp.asarray([0.3, 0.7]), nearby=0)
    assert page.seen_rank == 2 and page.resolved_rank == 1
    assert page.spectrum[1] < 100 * page.noise < 1e-8
    assert "1 of the 2 directions" in str(page) and "within the rounding of the model" in str(page)
    clean = pb.examine(PROBLEM, MODEL.params, BATCH, nearby=0)
    assert clean.resolved_rank == clean.seen_rank and clean.noise < 1e-14
    assert "within the rounding" not in str(clean)


def test_a_model_with_a_dtype_of_its_own_has_no_second_precision():
    def model(p):
        return p * jnp.asarray([1.0, 2.0], jnp.float64)

    problem = pb.Composite(model, lambda z: jnp.sum(z**2), pb.metric.Euclidean())
    page = pb.examine(problem, jnp.ones(2), nearby=0)
    assert np.isnan(page.noise) and page.resolved_rank == page.seen_rank == 2
