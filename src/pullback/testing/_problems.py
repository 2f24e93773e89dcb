r"""Problems whose rank and spectrum are known by construction, and small models with the
degeneracies that models have.

Rank deficiency is the subject of this library, so that it must be constructed, not hoped for.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from .._base.types import Params
from .._problem.composite import Composite
from .._problem.measure import Sum
from ..metric import AbstractMetric, Euclidean


class Example(NamedTuple):
    """A problem at a point."""

    problem: Composite
    params: Params
    batch: tuple[Any, ...]


class Model(NamedTuple):
    """A model from inputs of shape (N, d) to outputs of shape (N, k), with its parameters."""

    function: Callable[[Params, Float[Array, "N d"]], Float[Array, "N k"]]
    params: Params


def prescribed(
    rank: int,
    rows: int,
    size: int,
    spectrum: Sequence[float] | None = None,
    key: PRNGKeyArray | None = None,
    metric: AbstractMetric | None = None,
) -> Example:
    """A nonlinear problem whose Jacobian has given singular values: with the Euclidean metric they
    are those of A.

    The model is z = xθ + (xθ)² at θ = 0, one output a sample, and the inputs are the rows of J = U
    diag(spectrum) Vᵀ; the measure is `Sum()`. Labels are 0 and 1, and the loss is half the squared
    error.

    **Arguments:**

    - `rank`: the number of non-zero singular values, at most min(rows, size).
    - `rows`: m, the number of samples.
    - `size`: P, the number of parameters.
    - `spectrum`: the non-zero singular values; from 1 down to 1/10, evenly in their logarithm, if
        left out.
    - `key`: a PRNG key.
    - `metric`: the metric of the outputs; `Euclidean()` if left out.
    """
    values = np.geomspace(1.0, 0.1, rank) if spectrum is None else np.asarray(spectrum, float)
    if not 0 <= rank <= min(rows, size) or values.shape != (rank,):
        raise ValueError(
            f"prescribed(rank={rank}, rows={rows}, size={size}) with {values.size} values: "
            f"rank must be at most {min(rows, size)}, "
            "with one singular value for each."
        )
    rng = np.random.default_rng(
        np.asarray(jax.random.key_data(jax.random.key(0) if key is None else key))
    )
    left = np.linalg.qr(rng.standard_normal((rows, rows)))[0][:, :rank]
    right = np.linalg.qr(rng.standard_normal((size, size)))[0][:, :rank]
    inputs, targets = (
        jnp.asarray((left * values) @ right.T),
        jnp.asarray(rng.integers(0, 2, rows).astype(float)),
    )

    def model(params, x):
        return x @ params + (x @ params) ** 2

    problem = Composite(
        model, lambda z, y: (z - y) ** 2 / 2, Euclidean() if metric is None else metric, Sum()
    )
    return Example(problem, jnp.zeros(size), (inputs, targets))


def _draw(key: PRNGKeyArray, *shapes: tuple[int, ...]) -> list[Array]:
    keys = jax.random.split(key, len(shapes))
    return [
        jax.random.normal(k, shape) / np.sqrt(shape[0])
        for k, shape in zip(keys, shapes, strict=True)
    ]


def tanh_mlp(inputs: int, outputs: int, width: int, key: PRNGKeyArray) -> Model:
    """One hidden layer; overparametrised if `width` is large.

    **Arguments:**

    - `inputs`, `outputs`, `width`: the sizes of the layers.
    - `key`: a PRNG key.
    """
    w, b, v = _draw(key, (inputs, width), (width,), (width, outputs))
    return Model(
        lambda p, x: jnp.tanh(x @ p["w"] + p["b"][None, :]) @ p["v"], {"w": w, "b": b, "v": v}
    )


def few_parameters(inputs: int, outputs: int, size: int, key: PRNGKeyArray) -> Model:
    """A curve or surface in the space of outputs: underparametrised if `size` is small.

    **Arguments:**

    - `inputs`, `outputs`: the sizes of a sample.
    - `size`: the number of parameters.
    - `key`: a PRNG key.
    """
    theta, maps = _draw(key, (size,), (inputs, size, outputs))
    return Model(
        lambda p, x: jnp.sin(
            jnp.einsum("nd,dpk,p->nk", x, maps.astype(x.dtype), p) + jnp.sum(p) / 2
        ),
        theta,
    )


def tied_weights(inputs: int, outputs: int, width: int, key: PRNGKeyArray) -> Model:
    """One matrix used in two layers, and a sum of two parameters that only occur together:
    rank-deficient by symmetry.

    **Arguments:**

    - `inputs`, `outputs`, `width`: the sizes of the layers.
    - `key`: a PRNG key.
    """
    u, w, a, b, v = _draw(
        key, (inputs, width), (width, width), (width,), (width,), (width, outputs)
    )

    def function(p, x):
        hidden = jnp.tanh(x @ p["u"] @ p["w"] + (p["a"] + p["b"])[None, :])
        return jnp.tanh(hidden @ p["w"]) @ p["v"]

    return Model(function, {"u": u, "w": w, "a": a, "b": b, "v": v})


def bottleneck(inputs: int, outputs: int, width: int, key: PRNGKeyArray) -> Model:
    """A deep linear network with a narrow layer: the product has a rank of at most `width`, and the
    scale moves freely between factors.

    **Arguments:**

    - `inputs`, `outputs`, `width`: the sizes of the layers.
    - `key`: a PRNG key.
    """
    return Model(
        lambda p, x: x @ p[0] @ p[1] @ p[2],
        _draw(key, (inputs, width), (width, width + 1), (width + 1, outputs)),
    )


def dead_unit(inputs: int, outputs: int, width: int, key: PRNGKeyArray) -> Model:
    """A hidden layer with one rectified unit that is off for every input of size less than 100:
    columns of exact zeros.

    **Arguments:**

    - `inputs`, `outputs`, `width`: the sizes of the layers.
    - `key`: a PRNG key.
    """
    w, b, v = _draw(key, (inputs, width), (width,), (width, outputs))

    def function(p, x):
        hidden = x @ p["w"] + p["b"][None, :]
        return (
            jnp.concatenate([jax.nn.relu(hidden[:, :1] - 1000), jnp.tanh(hidden[:, 1:])], axis=1)
            @ p["v"]
        )

    return Model(function, {"w": w, "b": b, "v": v})


def carried_leaves(inputs: int, outputs: int, width: int, key: PRNGKeyArray) -> Model:
    """Parameters among integers, booleans, a string and a function, which the model uses and which
    do not move.

    **Arguments:**

    - `inputs`, `outputs`, `width`: the sizes of the layers.
    - `key`: a PRNG key.
    """
    w, v = _draw(key, (inputs, width), (width, outputs))
    order = jnp.arange(width)[::-1]

    def function(p, x):
        hidden = p["activation"](x @ p["layers"][0]["w"])[:, p["order"]]
        return (hidden @ p["layers"][1]["v"]) * (2.0 if p["kind"] == "double" else 1.0)

    layers = [{"w": w, "frozen": False}, {"v": v, "steps": 3}]
    return Model(
        function, {"layers": layers, "order": order, "kind": "double", "activation": jnp.tanh}
    )
