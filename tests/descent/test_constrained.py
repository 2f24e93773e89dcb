"""One step under a constraint: by projection, by clipping and by a penalty."""

import jax.numpy as jnp
import numpy as np
import pytest

import pullback as pb


def test_a_step_by_back_projection_clipping_and_penalty():
    problem = pb.Composite(lambda p: p, lambda z: jnp.sum((z - jnp.asarray([2.0, -1.0])) ** 2) / 2)
    start, clip = jnp.asarray([0.5, 0.5]), pb.constraint.Clipping(0.0, 1.0)
    step = pb.constrained_step(problem, start, step=1.0, constraint=clip)
    assert (
        np.allclose(step.params, [1.0, 0.0])
        and np.allclose(step.free, [2.0, -1.0])
        and float(step.slack) == 0
    )
    assert (
        np.isclose(step.correction, np.sqrt(2))
        and float(pb.constrained_step(problem, start, step=0.1, constraint=clip).correction) == 0
    )
    outside = jnp.asarray([1.5, 0.5])
    soft = pb.constrained_step(
        problem, outside, step=0.1, constraint=pb.constraint.Penalty(clip, 10.0)
    )
    assert np.allclose(
        soft.params,
        outside - 0.1 * (outside - jnp.asarray([2.0, -1.0])) - 0.1 * jnp.asarray([5.0, 0.0]),
    )
    assert float(soft.dropped) < 1e-12
    # A penalty on a direction that does not move the model is dropped, and said to be.
    redundant = pb.Composite(lambda p: p[0] + p[1], lambda z: z**2)
    lost = pb.constrained_step(
        redundant,
        jnp.asarray([1.5, -1.0]),
        step=0.1,
        constraint=pb.constraint.Penalty(pb.constraint.At(lambda p: p[0], clip), 1.0),
    )
    assert np.isclose(lost.dropped, np.sqrt(0.5))
    with pytest.raises(ValueError, match=r"violates the constraint Clipping by 0\.5"):
        pb.constrained_step(problem, outside, step=0.1, constraint=clip)
