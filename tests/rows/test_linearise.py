"""One linearisation, J one sample at a time, forward or reverse mode by shape, bounded memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import distance, flat, normal

import pullback as pb
from pullback import testing
from pullback._base.tree import structure
from pullback._rows.linearise import block, linearise, over_samples, sum_over_samples

MODEL = testing.tanh_mlp(3, 2, 4, jax.random.key(0))


def square(z, y):
    return jnp.sum((z - y) ** 2, axis=1) / 2


def make(samples, coupled=False, function=MODEL.function, metric=None):
    problem = pb.Composite(
        function, square, pb.metric.Gaussian() if metric is None else metric, coupled=coupled
    )
    return testing.Example(problem, MODEL.params, (normal(samples, 3), normal(samples, 2, seed=1)))


def shapes(jaxpr):
    """The shapes of everything that is computed, inner computations too."""
    found = set()
    for equation in jaxpr.eqns:
        found |= {tuple(v.aval.shape) for v in equation.outvars if hasattr(v.aval, "shape")}
        for parameter in jax.tree.leaves(
            equation.params, is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")
        ):
            inner = getattr(parameter, "jaxpr", parameter)
            if hasattr(inner, "eqns"):
                found |= shapes(inner)
    return found


def test_chunked_sums_and_maps():
    values = normal(10, 3)
    for chunk in range(1, 12):
        assert (
            distance(
                sum_over_samples(lambda x: jnp.sum(x, axis=0), values, 10, chunk),
                values.sum(axis=0),
            )
            < 1e-14
        )
        assert distance(over_samples(lambda x: x * 2, values, 10, chunk), values * 2) == 0


@pytest.mark.parametrize("size", [2, 9], ids=["reverse", "forward"])
def test_forward_and_reverse_mode_by_shape(size):
    """W has `size` columns, θ has 4 entries: reverse mode takes `size` products, forward mode 4."""
    maps, weights, theta = normal(6, 4), normal(6, size, seed=1), normal(4, seed=2)
    function = lambda p: jnp.tanh(maps @ p)
    dense = weights.T @ jax.jacobian(function)(theta)
    push, pull = (lambda v: weights.T @ v), (lambda w: weights @ w)
    like = structure(theta)
    assert distance(block(function, theta, like, push, pull, size), dense) < 1e-14
    found = shapes(
        jax.make_jaxpr(lambda p: block(function, p, like, push, pull, size))(theta).jaxpr
    )
    # The wide identity that starts the cheaper mode is there, the other is not.
    assert ((size, size) in found) == (size <= 4)
    assert ((4, 4) in found) == (size > 4)


def test_one_linearisation_gives_outputs_and_both_products():
    theta, like = structure(MODEL.params).ravel(MODEL.params), structure(MODEL.params)
    inputs, calls = normal(5, 3), []

    def function(p):
        calls.append(1)
        return {"z": MODEL.function(p, inputs), "index": jnp.arange(5), "name": "carried"}

    linear = linearise(function, MODEL.params, like)
    v, c = normal(theta.size, seed=3), {"z": normal(5, 2, seed=4), "index": None, "name": None}
    dense = np.asarray(jax.jacobian(lambda p: function(like.unravel(p))["z"])(theta)).reshape(
        10, -1
    )
    calls.clear()
    pushed, pulled = linear.pushforward(v), linear.pull(c)
    assert not calls, "a product runs the model again"
    assert distance(pushed, dense @ v) < 1e-14
    assert distance(pulled, dense.T @ flat(c)) < 1e-14
    assert linear.outputs["name"] == "carried"
    assert linear.outputs["index"].dtype == jnp.arange(5).dtype
    assert jax.tree.structure(pushed) == jax.tree.structure(c)


def largest(example, **kwargs):
    function = lambda params, batch: pb.pullback(
        example.problem, params, batch, **kwargs
    ).jacobian()
    return max(
        int(np.prod(shape))
        for shape in shapes(jax.make_jaxpr(function)(example.params, example.batch).jaxpr)
    )


WIDE = testing.tanh_mlp(3, 2, 40, jax.random.key(0))
"""More parameters than rows, so that a Jacobian of the batched function would be taken in reverse
mode, one product for each row.
"""


def mixed(params, x):
    """The same outputs by a program in which samples change places."""
    return jnp.flip(WIDE.function(params, jnp.flip(x, 0)), 0)


def wide(samples, coupled=False, function=None):
    function = (mixed if coupled else WIDE.function) if function is None else function
    problem = pb.Composite(function, square, pb.metric.Gaussian(), coupled=coupled)
    return testing.Example(problem, WIDE.params, (normal(samples, 3), normal(samples, 2, seed=1)))


def test_the_jacobian_is_taken_one_sample_at_a_time():
    """A Jacobian of the batched function pulls N k covectors through N samples each; ours never
    holds N² of anything.
    """
    samples, size = 32, structure(WIDE.params).size
    assert largest(wide(samples)) <= 2 * samples * 2 * size
    assert largest(wide(samples, coupled=True)) >= 2 * samples * samples * 40
    assert (
        distance(pb.pullback(*wide(4, coupled=True)).jacobian(), pb.pullback(*wide(4)).jacobian())
        < 1e-14
    )


def flops(samples, coupled=False, function=None):
    example = wide(samples, coupled, function)
    run = jax.jit(lambda p, b: pb.pullback(example.problem, p, b).jacobian())
    return run.lower(example.params, example.batch).compile().cost_analysis()["flops"]


def test_cost_grows_with_the_samples_not_with_their_square():
    assert flops(32) / flops(16) < 2.2
    assert flops(32, coupled=True) / flops(16, coupled=True) > 3
    # A model that is declared to mix samples, and does not, costs no more.
    assert flops(32, True, WIDE.function) / flops(16, True, WIDE.function) < 2.2


def test_memory_is_bounded_by_the_chunk():
    """With blocks of one sample, the matrix of 512 samples is summed without ever holding their
    Jacobian.
    """
    example = make(512)
    size = structure(MODEL.params).size
    run = lambda memory: (
        jax.make_jaxpr(lambda p, b: pb.pullback(example.problem, p, b, memory=memory).matrix())(
            *example[1:]
        ).jaxpr
    )
    biggest = lambda memory: max(int(np.prod(shape)) for shape in shapes(run(memory)))
    bound = max(size * size, 512 * 3, 512 * 4)
    assert biggest(1) <= bound
    assert biggest(2**30) >= 512 * 2 * size
