"""The workloads' models in plain JAX, for every JAX library here; they run on old versions."""

import jax
import jax.numpy as jnp

from .problems import HEADS


def mlp(params, x):
    """A tanh network."""
    for w, b in params[:-1]:
        x = jnp.tanh(x @ w + b)
    w, b = params[-1]
    return x @ w + b


def laplacian(params, x):
    """Δu of the tanh network u, by two forward derivatives along each axis."""

    def along(point, axis):
        return jax.jvp(
            lambda y: jax.jvp(lambda z: mlp(params, z), (y,), (axis,))[1], (point,), (axis,)
        )[1]

    axes = jnp.eye(x.shape[-1], dtype=x.dtype)
    return jax.vmap(lambda point: jax.vmap(lambda axis: along(point, axis))(axes).sum(0))(x)


def conv(params, x):
    """Two 3×3 convolutions of stride 2 and a dense layer."""
    for w, b in params[:-1]:
        x = jax.lax.conv_general_dilated(
            x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = jnp.tanh(x + b)
    w, b = params[-1]
    return x.reshape(x.shape[0], -1) @ w + b


def _normalise(params, x):
    scale, shift = params
    x = x - x.mean(-1, keepdims=True)
    return scale * x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) + shift


def _attend(query, key, value, out, x):
    def heads(layer):
        w, b = layer
        return (x @ w + b).reshape(*x.shape[:-1], HEADS, -1)

    q = heads(query)
    k = heads(key)
    v = heads(value)
    weights = jax.nn.softmax(
        jnp.einsum("...qhd,...khd->...hqk", q, k) / q.shape[-1] ** 0.5, axis=-1
    )
    mixed = jnp.einsum("...hqk,...khd->...qhd", weights, v).reshape(x.shape)
    return mixed @ out[0] + out[1]


def encoder(params, x):
    """A pre-norm transformer encoder on sequences, the mean over positions, a dense layer."""
    *blocks, norm, (w, b) = params
    for first, query, key, value, out, second, up, down in blocks:
        x = x + _attend(query, key, value, out, _normalise(first, x))
        hidden = jax.nn.gelu(_normalise(second, x) @ up[0] + up[1])
        x = x + hidden @ down[0] + down[1]
    return _normalise(norm, x).mean(-2) @ w + b


def rbm(params, x):
    """The logarithm of the amplitudes of a restricted Boltzmann machine."""
    (w, b), a = params
    hidden = x @ w + b
    # log cosh but for a constant, which centring removes.
    return jnp.sum(jnp.logaddexp(hidden, -hidden), axis=-1, keepdims=True) + (x @ a)[..., None]


MODELS = {
    "mlp": mlp,
    "laplacian": laplacian,
    "conv": conv,
    "encoder": encoder,
    "rbm": rbm,
    "complex": mlp,
}


def loss(workload, params, batch):
    """The mean loss of a workload."""
    x, y = batch
    z = MODELS[workload.kind](params, x)
    if workload.softmax:
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(z), y[:, None], axis=1))
    if workload.scores:
        return 2 * jnp.mean(y * z[:, 0])
    return jnp.mean(jnp.abs(z - y) ** 2) / 2


def whitening(workload, z, y):
    """The root S of the metric of each sample (N, C, q), S Sᵀ = M/N, and r (N, q) with S r = c, the
    differential of the mean loss.

    Softmax: S = diag(√p) H without its last column, H the Householder reflection that sends √p to
    -e_C. The centring of scores is left to the caller.
    """
    n, classes = z.shape
    if workload.scores:
        return jnp.full((n, 1, 1), n**-0.5, z.dtype), 2 * y[:, None] / n**0.5
    if not workload.softmax:
        eye = jnp.eye(classes, dtype=z.dtype) / n**0.5
        return jnp.broadcast_to(eye, (n, classes, classes)), (z - y) / n**0.5
    p = jax.nn.softmax(z)
    root = jnp.sqrt(p)
    u = root.at[:, -1].add(1.0)
    reflection = (
        jnp.eye(classes, dtype=z.dtype) - u[:, :, None] * u[:, None, :] / u[:, -1][:, None, None]
    )
    columns = reflection[:, :, :-1]
    c = (p - jax.nn.one_hot(y, classes, dtype=z.dtype)) / root
    return root[:, :, None] * columns / n**0.5, jnp.einsum("ncq,nc->nq", columns, c) / n**0.5
