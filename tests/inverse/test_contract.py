"""What an inverse returns is checked when things are built, and said in words of the contract."""

import jax.numpy as jnp
import pytest

import pullback as pb
from pullback.inverse import AbstractInverse, Dampable

PROBLEM = pb.Composite(lambda p, x: x @ p, lambda z, y: (z - y) ** 2 / 2)
PARAMS = jnp.ones(2)
BATCH = (jnp.asarray([[1.0, 2.0], [0.5, -1.0], [2.0, 0.0]]), jnp.zeros(3))


class Own(AbstractInverse):
    """1/(s² + 1), with a cut-off and an h₀ that a test chooses."""

    cut: object = 0.0
    null: object = 1.0
    gauge: None = None

    def filter(self, s, cutoff):
        return 1 / (s * s + 1)

    def cutoff(self, largest, shape):
        return self.cut

    @property
    def kernel(self):
        return self.null


@pytest.mark.parametrize("what", ["cutoff", "kernel"])
@pytest.mark.parametrize("value", [jnp.zeros(4), jnp.zeros((1, 1)), True, 1j])
def test_a_cutoff_or_kernel_that_is_no_number_is_named(what, value):
    inverse = Own(**{"cut" if what == "cutoff" else "null": value})
    with pytest.raises(ValueError, match=rf"Own\.{what}.* must be one real number, got"):
        pb.natural_gradient(PROBLEM, PARAMS, BATCH, inverse=inverse)


def test_whole_numbers_are_numbers():
    expected = pb.natural_gradient(PROBLEM, PARAMS, BATCH, inverse=Own()).vector
    whole = pb.natural_gradient(PROBLEM, PARAMS, BATCH, inverse=Own(0, 1)).vector
    assert jnp.array_equal(whole, expected)


def test_an_inverse_that_waits_for_a_damping_has_no_solution():
    with pytest.raises(ValueError, match=r"Dampable\(\.\.\.\) has no solution .*Tikhonov\(λ\)"):
        pb.natural_gradient(PROBLEM, PARAMS, BATCH, inverse=Dampable(pb.MoorePenrose()))
