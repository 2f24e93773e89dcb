"""Operations counted in the program of a model: products, convolutions, calls and loops."""

import jax
import jax.numpy as jnp

from pullback._compat.jaxpr import trace
from pullback._gram.flops import flops

X = jnp.ones((5, 3))
W = jnp.ones((3, 4))


def count(function, *args):
    return flops(trace(function, *args))


def test_products_calls_and_loops():
    once = 2 * 5 * 3 * 4
    assert count(jnp.matmul, X, W) == once
    assert count(lambda x, w: jnp.tanh(x @ w) + 1.0, X, W) == once, "nothing else is counted"
    assert count(lambda x, w: jax.jit(jnp.matmul)(x, w), X, W) == once

    def loop(x, w):
        return jax.lax.scan(lambda carry, _: (carry + x @ w, None), jnp.zeros((5, 4)), length=7)

    assert count(loop, X, W) == 7 * once


def test_convolutions():
    # Six images of one row: 8 places, 2 channels to 3, a window of 4.
    images, filters = jnp.ones((6, 2, 11)), jnp.ones((3, 2, 4))
    convolve = lambda x, w: jax.lax.conv_general_dilated(x, w, (1,), "VALID")
    assert count(convolve, images, filters) == 2 * (6 * 3 * 8) * (2 * 4)
