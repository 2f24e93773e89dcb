"""Methods of others, as `check_invariance` takes them, and those that it does not take."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest
from helpers import normal

import pullback as pb
from pullback import testing

MODEL = testing.tied_weights(2, 2, 2, jax.random.key(0))
BATCH = (normal(3, 2, seed=1), normal(3, 2, seed=2))
PROBLEM = pb.Composite(MODEL.function, lambda z, y: jnp.sum((z - y) ** 2, axis=1) / 2)


def check(
    method=None, problem=PROBLEM, params=MODEL.params, batch=BATCH, seed=0, amplitude=0.5, counts=()
):
    f = pb.random_reparametrisation(params, jax.random.key(seed), amplitude)
    return pb.check_invariance(
        problem, params, batch, reparametrisation=f, method=method, counts=counts
    )


class Descent(eqx.Module):
    """An optimiser with its problem, as anyone may write it."""

    problem: pb.Composite
    rate: float

    def init(self, params):
        return 0

    def step(self, params, state, batch):
        ng = pb.natural_gradient(self.problem, params, batch)
        return jax.tree.map(lambda p, v: p - self.rate * v, params, ng.vector), state + 1, ng.stats


@pytest.mark.parametrize(
    "method",
    [Descent(PROBLEM, 0.1), pb.NaturalGradientDescent(PROBLEM, step=pb.step.Fixed(0.1))],
    ids=["theirs", "ours"],
)
def test_an_optimiser_with_its_problem(method):
    found = testing.assert_invariant(PROBLEM, MODEL.params, BATCH, method=method, count=1)
    assert found[0].model < 1e-9


def test_what_the_helper_for_test_suites_refuses():
    with pytest.raises(AssertionError, match="not invariant: the directions differ by"):
        testing.assert_invariant(PROBLEM, MODEL.params, BATCH, method=optax.sgd(1.0), count=1)
    with pytest.raises(ValueError, match="no attribute problem"):
        check(type("Odd", (), {"init": None, "step": None})())
    with pytest.raises(ValueError, match="method must be an inverse"):
        check(3)
    with pytest.raises(ValueError, match="got adam itself: call it"):
        check(optax.adam)
    with pytest.raises(ValueError, match="got MoorePenrose itself: call it"):
        check(pb.MoorePenrose)
    plain = type("Plain", (), {"init": None, "step": None, "problem": PROBLEM})()
    with pytest.raises(ValueError, match=r"not a pytree.*equinox\.Module"):
        check(plain)
