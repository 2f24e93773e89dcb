"""The model at a point: one linearisation, J one sample at a time, forward or reverse by shape, in
bounded memory.
"""

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


def memory_of(chunk, metric):
    """A bound in bytes that allows blocks of so many samples."""
    return 3 * (metric.linear.like.size // metric.count) * metric.size * 8 * chunk


@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 5, 6, 7, 8])
def test_the_result_does_not_depend_on_the_chunk(chunk):
    """7 samples: whole blocks, remainders of one and more, one block."""
    example = make(7, metric=pb.metric.Bernoulli())
    whole = pb.pullback(*example)
    parts = pb.pullback(*example, memory=memory_of(chunk, whole))
    assert parts.chunk == min(chunk, 7)
    assert distance(parts.jacobian(), whole.jacobian()) < 1e-15
    assert distance(parts.matrix(), whole.matrix()) < 1e-14
    assert distance(whole.matrix(), testing.reference_natural_gradient(*example).matrix) < 1e-13


@pytest.mark.parametrize(
    "solver", [pb.solver.SVD(), pb.solver.Primal(), pb.solver.Dual()], ids=lambda s: s.name
)
def test_the_natural_gradient_does_not_depend_on_the_chunk(solver):
    example = make(7)
    expected = testing.reference_natural_gradient(*example)
    for memory in (1, memory_of(3, pb.pullback(*example))):
        assert (
            distance(
                pb.natural_gradient(*example, solver=solver, memory=memory).vector, expected.vector
            )
            < 1e-9
        )


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


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products_are_adjoint_where_they_are_used_in_the_same_program(dtype):
    """XLA of jaxlib 0.10 loses the gradient of the second bias from a sum of padded gradients that
    it fuses with a dot product; at this size it does.
    """
    rng = np.random.default_rng(0)
    params = [
        [jnp.asarray(rng.standard_normal(s) / 16, dtype) for s in ((a, b), (b,))]
        for a, b in ((64, 256), (256, 256), (256, 10))
    ]
    x = jnp.asarray(rng.standard_normal((256, 64)), dtype)

    def model(params, x):
        for w, b in params[:-1]:
            x = jnp.tanh(x @ w + b)
        return x @ params[-1][0] + params[-1][1]

    problem = pb.Composite(model, metric=pb.metric.Categorical())
    v, y = (jnp.asarray(rng.standard_normal(n), dtype) for n in (85002, 2304))

    @jax.jit
    def pairings(params, x, v, y):
        metric = pb.pullback(problem, params, (x, jnp.zeros(256, jnp.int32)))
        return jnp.vdot(y, metric.unit_mv(v)), jnp.vdot(metric.unit_rmv(y), v)

    with jax.numpy_rank_promotion("allow"):
        pushed, pulled = pairings(params, x, v, y)
    # Rounding is of the order of the norms over the root of the number of terms; what was lost was
    # some percent.
    assert abs(float(pushed - pulled)) < (1e-3 if dtype == "float32" else 1e-11) * abs(
        float(pushed)
    )


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


def wide(samples, coupled=False):
    problem = pb.Composite(WIDE.function, square, pb.metric.Gaussian(), coupled=coupled)
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


def flops(samples, coupled=False):
    example = wide(samples, coupled)
    run = jax.jit(lambda p, b: pb.pullback(example.problem, p, b).jacobian())
    return run.lower(example.params, example.batch).compile().cost_analysis()["flops"]


def test_cost_grows_with_the_samples_not_with_their_square():
    assert flops(32) / flops(16) < 2.2
    assert flops(32, coupled=True) / flops(16, coupled=True) > 3


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


def normalised(params, x):
    z = MODEL.function(params, x)
    return z - jnp.mean(z, axis=0, keepdims=True)


def test_a_coupled_model_that_is_declared():
    example = make(5, coupled=True, function=normalised)
    expected = testing.reference_natural_gradient(*example)
    assert distance(pb.pullback(*example).matrix(), expected.matrix) < 1e-13
    for solver in (pb.solver.SVD(), pb.solver.Primal(), pb.solver.Dual()):
        ng = pb.natural_gradient(*example, solver=solver)
        assert distance(ng.vector, expected.vector) < 1e-9
        assert int(ng.stats.rank) == expected.rank


def test_a_coupled_model_that_is_not_declared_is_named():
    with pytest.raises(
        RuntimeError, match=r"the model mixes samples.*Composite\(\.\.\., coupled=True\)"
    ):
        pb.natural_gradient(*make(5, function=normalised))
    ng = pb.natural_gradient(*make(5, function=normalised), throw=False)
    assert bool(ng.result == pb.RESULTS.coupled_samples)


def test_inputs_may_be_a_tree_with_carried_leaves():
    inputs = {"x": normal(4, 3), "kind": "plain", "index": jnp.arange(4)}

    def function(p, x):
        assert x["kind"] == "plain"
        return MODEL.function(p, x["x"]) * (1.0 + x["index"].astype(float))[:, None]

    problem = pb.Composite(function, square, pb.metric.Gaussian())
    plain = pb.Composite(
        lambda p, x: MODEL.function(p, x) * (1 + jnp.arange(4.0))[:, None],
        square,
        pb.metric.Gaussian(),
        coupled=True,
    )
    targets = normal(4, 2, seed=1)
    found = pb.natural_gradient(problem, MODEL.params, (inputs, targets))
    expected = testing.reference_natural_gradient(plain, MODEL.params, (inputs["x"], targets))
    assert distance(found.vector, expected.vector) < 1e-9
