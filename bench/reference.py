"""The float64 references v = (G + λ)⁻¹ g, kept in `build/bench`, by arithmetic that shares no code
with pullback.

m < P: v = Aᵀ (K + λ)⁻¹ r with K = AAᵀ, for MLPs by the layer formula, else from the dense A;
otherwise v = (AᵀA + λ)⁻¹ Aᵀr from the dense A, a block of samples at a time. The rows of scores are
centred. A complex model is one of pairs of real numbers. Two steps of refinement. The relative
residual of (G + λ) v = g is checked by products with J and Jᵀ of JAX, which use neither K nor the
layer formula. `python -m bench.reference W1 PATH [residual]`.
"""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg as sl
from jax.flatten_util import ravel_pytree

from pullback._compat.xla import jit  # only its compiler options, which the numbers need

from .models import MODELS, loss, whitening
from .problems import Workload, find, make


def _double(workload: Workload):
    params, (x, y) = make(workload)
    wide = jnp.complex128 if workload.kind == "complex" else jnp.float64
    params = jax.tree.map(lambda p: jnp.asarray(p, wide), params)
    return params, (jnp.asarray(x, wide), jnp.asarray(y))


def _real(workload: Workload, params):
    """The parameters as one real vector, the way back, and the outputs as real numbers."""
    point, unravel = ravel_pytree(params)
    model = MODELS[workload.kind]
    if workload.kind != "complex":
        return point, unravel, lambda p, x: model(unravel(p), x)
    pairs = lambda z: jnp.stack([jnp.real(z), jnp.imag(z)], axis=-1)
    back = lambda u: unravel(jax.lax.complex(u[::2], u[1::2]))
    return pairs(point).ravel(), back, lambda u, x: pairs(model(back(u), x)[:, 0])


def _centred(workload: Workload, values):
    return values - values.mean(0) if workload.scores else values


def products(workload: Workload):
    """v ↦ (G + λ) v and g, on flat float64 vectors, by automatic differentiation."""
    params, (x, y) = _double(workload)
    point, unravel, model = _real(workload, params)

    @jit
    def apply(point, x, v):
        def outputs(p):
            return model(p, x)

        z, pushed = jax.jvp(outputs, (point,), (v,))
        root, _ = whitening(workload, z, _pairs(workload, y))
        weighted = jnp.einsum("ncq,nbq,nb->nc", root, root, _centred(workload, pushed))
        return jax.vjp(outputs, point)[1](weighted)[0] + workload.damping * v

    g = jit(jax.grad(lambda p, x: loss(workload, unravel(p), (x, y))))(point, x)
    return lambda v: apply(point, x, v), g


def _pairs(workload: Workload, y):
    """Complex targets as pairs."""
    return jnp.concatenate([jnp.real(y), jnp.imag(y)], 1) if workload.kind == "complex" else y


def residual(workload: Workload, v: np.ndarray) -> float:
    """‖(G + λ) v - g‖ / ‖g‖ in float64."""
    apply, g = products(workload)
    return float(jnp.linalg.norm(apply(jnp.asarray(v)) - g) / jnp.linalg.norm(g))


def _layer_kernel(workload: Workload, params, x, root) -> np.ndarray:
    """K of an MLP: Σ over layers of (X Xᵀ + 1) ∘ (D Dᵀ), rows ordered (sample, root column)."""
    hidden = [np.asarray(x)]
    for w, b in params[:-1]:
        hidden.append(np.tanh(hidden[-1] @ np.asarray(w) + np.asarray(b)))
    d = np.asarray(root).transpose(0, 2, 1)
    n, q = d.shape[:2]
    kernel = np.zeros((n * q, n * q))
    for layer in range(len(params) - 1, -1, -1):
        rows = d.reshape(n * q, -1)
        kernel += np.kron(hidden[layer] @ hidden[layer].T + 1, np.ones((q, q))) * (rows @ rows.T)
        d = (d @ np.asarray(params[layer][0]).T) * (1 - hidden[layer] ** 2)[:, None, :]
    return kernel


def _rows(workload: Workload, params, x, root, block: int):
    """The dense A, one block of samples at a time."""
    point, _, model = _real(workload, params)

    @jit
    def rows(point, x, root):
        def one(x, root):
            return jax.jacrev(lambda p: root.T @ model(p, x[None])[0])(point)

        return jax.vmap(one)(x, root).reshape(-1, point.size)

    for start in range(0, workload.samples, block):
        yield np.asarray(rows(point, x[start : start + block], root[start : start + block]))


def solve(workload: Workload) -> np.ndarray:
    """The reference."""
    params, (x, y) = _double(workload)
    point, _, model = _real(workload, params)
    z, pull = jax.vjp(lambda p: model(p, x), point)
    root, r = whitening(workload, z, _pairs(workload, y))
    dual = workload.rows < point.size
    if workload.kind == "mlp" and dual:
        gram = _layer_kernel(workload, params, x, root)
    elif dual:
        a = np.concatenate(list(_rows(workload, params, x, root, 32)))
        gram = a @ a.T
    elif workload.scores:
        raise NotImplementedError("scores are centred on the side of the samples only")
    else:
        gram = np.zeros((point.size, point.size), order="F")
        for a in _rows(workload, params, x, root, 500):
            gram = sl.blas.dsyrk(1.0, a.T, beta=1.0, c=gram, lower=1, overwrite_c=1)
        gram = np.tril(gram) + np.tril(gram, -1).T
    gram = _centred(workload, _centred(workload, gram).T)
    gram[np.diag_indices(len(gram))] += workload.damping
    factor = sl.cho_factor(gram, lower=True)

    def refined(b):
        y = sl.cho_solve(factor, b)
        for _ in range(2):
            y += sl.cho_solve(factor, b - gram @ y)
        return y

    def transpose(y):
        return np.asarray(pull(jnp.einsum("ncq,nq->nc", root, jnp.asarray(y).reshape(r.shape)))[0])

    return (
        transpose(refined(np.asarray(r).ravel()))
        if dual
        else refined(transpose(np.asarray(r).ravel()))
    )


def main(name: str, path: str, only: str = "") -> None:
    """Compute, check, save."""
    jax.config.update("jax_enable_x64", True)
    workload = find(name)
    if only == "residual":
        print(json.dumps({"residual": residual(workload, np.load(path))}))
        return
    v = solve(workload)
    error = residual(workload, v)
    assert error < 1e-8, f"{name}: the reference leaves a residual of {error:.1e}"
    np.save(path, v)
    print(f"{name}: reference with residual {error:.1e}")


if __name__ == "__main__":
    main(*sys.argv[1:4])
