"""Results print by their names."""

import jax
import jax.numpy as jnp
import lineax as lx

import pullback as pb


def test_a_result_prints_by_its_name():
    assert (
        repr(pb.RESULTS.successful)
        == "RESULTS.successful"
        == repr(jax.jit(lambda r: r)(pb.RESULTS.successful))
    )
    assert str(pb.RESULTS.successful) == "successful"
    assert str(pb.RESULTS.rank_zero).startswith("rank_zero: The pullback metric is zero")
    promoted = pb.RESULTS.promote(lx.RESULTS.max_steps_reached)
    assert (
        repr(promoted) == "RESULTS.max_steps_reached" and promoted == pb.RESULTS.max_steps_reached
    )


def test_several_results_are_counted_and_a_traced_one_says_so():
    choose = lambda x: pb.RESULTS.where(x > 0, pb.RESULTS.successful, pb.RESULTS.rank_zero)
    several = jax.vmap(choose)(jnp.asarray([1.0, 2.0, -1.0]))
    assert repr(several) == "RESULTS(2 successful, 1 rank_zero)"
    assert isinstance(several, pb.RESULTS)
    seen = []
    jax.jit(lambda x: seen.append(repr(choose(x))))(1.0)
    assert seen == ["RESULTS(traced)"]
