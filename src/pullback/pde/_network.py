r"""A tanh network of given widths whose first layer has its transitions inside the domain.

First layer: rows \(w \sim N(0, \sigma^2)\) and \(b = -w\cdot c\), \(c\) uniform in the box, so that
every unit changes its sign inside the domain. The other layers are uniform in \(\pm 1/\sqrt{n}\),
\(n\) the width of the layer before.
"""

import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from .._base.types import Params, Scalar


def network(params: Params, x: Float[Array, " d"]) -> Scalar:
    """The network at one point.

    **Arguments:**

    - `params`: pairs of weights and biases.
    - `x`: the point.
    """
    for w, b in params[:-1]:
        x = jnp.tanh(w @ x + b)
    w, b = params[-1]
    return (w @ x + b)[0]


def initialise(key: PRNGKeyArray, widths: Sequence[int], scale: float = 1.0) -> Params:
    """Random parameters to start from, in the default dtype.

    **Arguments:**

    - `key`: a PRNG key.
    - `widths`: the widths of the layers, inputs and the one output included.
    - `scale`: the standard deviation σ of the first layer.
    """
    params = []
    for i, (m, n) in enumerate(itertools.pairwise(widths)):
        one, two = jax.random.split(jax.random.fold_in(key, i))
        if i == 0:
            w = scale * jax.random.normal(one, (n, m))
            b = -jnp.sum(w * jax.random.uniform(two, (n, m)), axis=1)
        else:
            w, b = (
                jax.random.uniform(k, shape, minval=-1, maxval=1) / m**0.5
                for k, shape in ((one, (n, m)), (two, (n,)))
            )
        params.append((w, b))
    return params
