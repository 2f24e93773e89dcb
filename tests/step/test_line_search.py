"""Line searches and grids, against loops written with NumPy."""

import jax.numpy as jnp
import numpy as np
from curved import PARAMS, PROBLEM, X, Y, close, curved, dense, half_square

import pullback as pb
from pullback._base.tree import structure


def test_line_search_asks_for_a_part_of_the_predicted_decrease():
    problem = pb.Composite(lambda p: jnp.sin(20 * p), lambda z: jnp.sum((z - 0.9) ** 2) / 2)
    params = jnp.asarray([0.075])
    a, r = 20 * np.cos(1.5), np.sin(1.5) - 0.9
    d = -r / a
    t = 1.0
    while 0.5 * r**2 - 0.5 * (np.sin(20 * (0.075 + t * d)) - 0.9) ** 2 < 0.3 * t * r**2:
        t /= 2
    opt = pb.NaturalGradientDescent(problem, step=pb.step.LineSearch(fraction=0.3))
    new, _, record = opt.step(params, opt.init(params))
    assert float(record.rate) == t < 1
    close(new, params + t * d)
    none = pb.NaturalGradientDescent(problem, step=pb.step.LineSearch(max_trials=1))
    stay, _, record = none.step(params, none.init(params))
    assert (
        not bool(record.accepted)
        and stay == params
        and record.loss_after == record.loss
        and record.norm == 0
    )


def test_grids_take_the_best():
    a, r, point = dense()
    loss = lambda d: (
        float(jnp.sum(half_square(curved(structure(PARAMS).unravel(jnp.asarray(point + d)), X), Y)))
        / 3
    )
    grid = pb.NaturalGradientDescent(PROBLEM, step=pb.step.GridSearch((1.0, 0.5, 0.1)))
    close(
        grid.step(PARAMS, grid.init(PARAMS), (X, Y))[2].loss_after,
        min(loss(-t * np.linalg.pinv(a) @ r) for t in (1, 0.5, 0.1)),
    )
    dampings = pb.NaturalGradientDescent(PROBLEM, step=pb.step.DampingSearch((1.0, 1e-2, 1e-4)))
    largest = np.linalg.norm(a, 2) ** 2
    damped = lambda x: -np.linalg.solve(a.T @ a + x * largest * np.eye(a.shape[1]), a.T @ r)
    close(
        dampings.step(PARAMS, dampings.init(PARAMS), (X, Y))[2].loss_after,
        min(loss(damped(x)) for x in (1, 1e-2, 1e-4)),
    )
