"""The natural gradient of an overparametrised softmax network, and the dense formula it agrees
with.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

import pullback as pb

jax.config.update("jax_enable_x64", True)


def mlp(params, x):
    for w, b in params[:-1]:
        x = jnp.tanh(x @ w + b)
    w, b = params[-1]
    return x @ w + b


def dense_formula(params, x, y):
    """G⁺g and the rank of G by NumPy, every matrix dense, and the Fisher matrices M."""
    flat, unravel = ravel_pytree(params)
    j = np.asarray(jax.jit(jax.jacrev(lambda w: mlp(unravel(w), x)))(flat))  # (N, K, P)
    p = np.asarray(jax.nn.softmax(mlp(params, x)))
    m = np.stack([np.diag(q) - np.outer(q, q) for q in p]) / len(x)
    c = (p - np.eye(3)[np.asarray(y)]) / len(x)
    g = np.einsum("nap,nab,nbq->pq", j, m, j)
    vector = np.linalg.pinv(g, rcond=1e-10, hermitian=True) @ np.einsum("nap,na->p", j, c)
    return vector, np.linalg.matrix_rank(g, tol=1e-10 * np.linalg.norm(g, 2)), m


def relative(a, b):
    return float(np.linalg.norm(np.asarray(a) - b) / np.linalg.norm(b))


def main() -> None:
    keys = jax.random.split(jax.random.key(0), 5)
    sizes = ((4, 16), (16, 16), (16, 3))
    params = [
        (jax.random.normal(k, (m, n)) / m**0.5, jnp.zeros(n))
        for k, (m, n) in zip(keys, sizes, strict=False)
    ]
    x = jax.random.normal(keys[3], (20, 4))
    y = jax.random.randint(keys[4], (20,), 0, 3)

    # A problem, its natural gradient, a step. The loss is the metric's own, the cross-entropy.
    problem = pb.Composite(mlp, metric=pb.metric.Categorical())
    ng = pb.natural_gradient(problem, params, (x, y))
    stepped = jax.tree.map(lambda p, v: p - 0.1 * v, params, ng.vector)

    after = pb.natural_gradient(problem, stepped, (x, y)).value
    print(ng.stats)
    print(f"loss            {ng.value:.4f}, after a step of 0.1 {after:.4f}")

    dense, rank, m = dense_formula(params, x, y)
    vector, _ = ravel_pytree(ng.vector)
    error = relative(vector, dense)
    print(f"dense formula   rank {rank}, relative difference {error:.0e}")
    if not error < 1e-8:
        raise SystemExit("The dense formula and pullback disagree.")

    # Other parameters, θ = sinh(η): another vector, the same motion of the probabilities.
    bent = lambda eta, x: mlp(jax.tree.map(jnp.sinh, eta), x)
    curved = pb.Composite(bent, metric=pb.metric.Categorical())
    other = pb.natural_gradient(curved, jax.tree.map(jnp.arcsinh, params), (x, y))
    slope = lambda v, t: v * jnp.sqrt(1 + t**2)
    mapped, _ = ravel_pytree(jax.tree.map(slope, other.vector, params))
    seen = lambda motion: np.einsum("nab,nb->na", m, np.asarray(motion))
    apart = relative(mapped, vector)
    same = relative(seen(other.pushforward), seen(ng.pushforward))
    print(f"reparametrised  vectors differ by {apart:.0%}, what the metric sees by {same:.0e}")
    if not same < 1e-10:
        raise SystemExit("The motion depends on the parametrisation.")


if __name__ == "__main__":
    main()
