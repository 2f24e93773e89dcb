"""Solutions in 60 digits, and problems whose A is a given matrix or the Jacobian of a network."""

import jax.numpy as jnp
import mpmath as mp
import numpy as np

import pullback as pb

LINEAR = pb.Composite(
    lambda p, x: x @ p, lambda z, y: (z - y) ** 2 / 2, pb.metric.Euclidean(), pb.Sum()
)
NETWORK = pb.Composite(
    lambda p, x: jnp.tanh(x @ p["w"] + p["b"][None, :]) @ p["v"],
    lambda z, y: jnp.sum((z - y) ** 2, axis=1) / 2,
    pb.metric.Euclidean(),
    pb.Sum(),
)
DIGITS = 60


def exact(a, r=None, g=None, damping=0.0, weights=None):
    """Return (G + λ)⁻¹(Aᵀr + g), G = AᵀA, of minimum norm; A has full rank.

    With `weights`, their logarithms, A is diag(e^ℓ) A and r is e^ℓ r.
    """
    with mp.workdps(DIGITS if weights is None else 900):
        matrix, right = mp.matrix(np.asarray(a, float).tolist()), None
        if weights is not None:
            scale = mp.diag([mp.exp(mp.mpf(float(w))) for w in weights])
            matrix = scale * matrix
        onto = matrix.rows < matrix.cols and damping == 0
        if r is not None:
            right = mp.matrix(np.asarray(r, float).tolist())
            right = right if weights is None else scale * right
            right = right if onto else matrix.T * right
        if onto:
            kernel = matrix * matrix.T
            if r is None:
                right = mp.lu_solve(kernel, matrix * mp.matrix(np.asarray(g, float).tolist()))
            found = matrix.T * mp.lu_solve(kernel, right)
        else:
            right = mp.matrix(np.asarray(g, float).tolist()) if r is None else right
            gram = matrix.T * matrix + mp.mpf(float(damping)) * mp.eye(matrix.cols)
            found = mp.lu_solve(gram, right)
        return np.array([float(x) for x in found])


def vector(size, seed=1):
    """Return normal numbers."""
    return np.random.default_rng(seed).standard_normal(size)


def conditioned(rows, size, condition, seed=0):
    """Return a matrix of full rank whose singular values are even in their logarithm."""
    rng = np.random.default_rng(seed)
    u, v = (np.linalg.qr(rng.standard_normal((n, n)))[0] for n in (rows, size))
    rank = min(rows, size)
    return (u[:, :rank] * np.geomspace(1.0, 1 / condition, rank)) @ v[:, :rank].T


def linear(a, **kwargs):
    """Return the pullback metric of a linear model: A is the given matrix."""
    batch = jnp.asarray(a), jnp.zeros(a.shape[0])
    return pb.pullback(LINEAR, jnp.zeros(a.shape[1]), batch, **kwargs)


def network(samples, width, seed=0):
    """Return the pullback metric of a network with 3 inputs and 2 outputs, and its A, dense."""
    rng = np.random.default_rng(seed)
    shapes = {"w": (3, width), "b": (width,), "v": (width, 2)}
    params = {name: jnp.asarray(rng.standard_normal(shape)) for name, shape in shapes.items()}
    batch = jnp.asarray(rng.standard_normal((samples, 3))), jnp.zeros((samples, 2))
    metric = pb.pullback(NETWORK, params, batch)
    return metric, np.asarray(metric.jacobian())


def dense(a, inverse, damping=None):
    """Return the matrices of a lifted covector and of a parameter covector, by NumPy.

    With `damping`, those of a pseudo-inverse that is damped afterwards: 1/(s² + λ) on what is kept,
    and on parameter covectors 1/λ elsewhere, zero for λ = 0.
    """
    _, s, vt = np.linalg.svd(a)
    s = np.concatenate([s, np.zeros(vt.shape[0] - s.size)])
    known = s > 1e-12 * s[0]
    h = np.full(s.shape, float(inverse.kernel))
    cutoff = inverse.cutoff(jnp.asarray(s[0]), a.shape)
    h[known] = np.asarray(inverse.filter(jnp.asarray(s[known]), cutoff))
    if damping is None:
        return (vt.T * h) @ vt @ a.T, (vt.T * h) @ vt
    kept = h > 0
    h = kept / np.where(kept, s**2 + damping, 1.0)
    outside = ~kept * (1 / damping if damping > 0 else 0.0)
    return (vt.T * h) @ vt @ a.T, (vt.T * (h + outside)) @ vt
