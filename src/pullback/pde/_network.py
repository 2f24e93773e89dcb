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

from .._base.checks import error
from .._base.types import Params
from ._box import Box
from ._sampling import unit


def network(params: Params, x: Float[Array, " d"]) -> Array:
    """The network at one point: a number, or a vector if the last layer has several outputs.

    **Arguments:**

    - `params`: pairs of weights and biases.
    - `x`: the point.
    """
    for w, b in params[:-1]:
        x = jnp.tanh(w @ x + b)
    w, b = params[-1]
    z = w @ x + b
    return z[0] if z.shape[0] == 1 else z


def initialise(
    key: PRNGKeyArray, widths: Sequence[int], scale: float = 1.0, domain: Box | None = None
) -> Params:
    """Random parameters to start from, in the default dtype.

    **Arguments:**

    - `key`: a PRNG key.
    - `widths`: the widths of the layers, inputs and outputs included.
    - `scale`: the standard deviation σ of the first layer.
    - `domain`: the box in which the units of the first layer have their transitions; defaults to
        the unit box.
    """
    box = unit(widths[0]) if domain is None else domain
    if box.dimension != widths[0]:
        raise error("initialise", "domain", domain, f"of dimension {widths[0]}, that of the inputs")
    params = []
    for i, (m, n) in enumerate(itertools.pairwise(widths)):
        one, two = jax.random.split(jax.random.fold_in(key, i))
        if i == 0:
            w = scale * jax.random.normal(one, (n, m))
            b = -jnp.sum(w * box(two, n), axis=1)
        else:
            w, b = (
                jax.random.uniform(k, shape, minval=-1, maxval=1) / m**0.5
                for k, shape in ((one, (n, m)), (two, (n,)))
            )
        params.append((w, b))
    return params
