"""The natural gradient of an overparametrised softmax network in ten lines, and the dense formula
it agrees with.
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


def main() -> None:
    keys = jax.random.split(jax.random.key(0), 5)
    sizes = list(zip((4, 16, 16), (16, 16, 3), strict=True))
    params = [
        (jax.random.normal(k, (m, n)) / m**0.5, jnp.zeros(n))
        for k, (m, n) in zip(keys, sizes, strict=False)
    ]
    x, y = jax.random.normal(keys[3], (20, 4)), jax.random.randint(keys[4], (20,), 0, 3)

    # The ten lines are three: a problem, its natural gradient, a step.
    problem = pb.Composite(
        mlp, metric=pb.metric.Categorical()
    )  # the loss is the metric's own, the cross-entropy
    ng = pb.natural_gradient(problem, params, (x, y))
    stepped = jax.tree.map(lambda p, v: p - 0.1 * v, params, ng.vector)

    print(ng.stats)
    print(
        f"loss            {ng.value:.4f}, after a step of 0.1 "
        f"{pb.natural_gradient(problem, stepped, (x, y)).value:.4f}"
    )

    # The same by the formula: every matrix dense, G = JᵀMJ inverted by NumPy.
    flat, unravel = ravel_pytree(params)
    j = np.asarray(jax.jit(jax.jacrev(lambda w: mlp(unravel(w), x)))(flat))  # (N, K, P)
    p = np.asarray(jax.nn.softmax(mlp(params, x)))
    m = np.stack([np.diag(q) - np.outer(q, q) for q in p]) / len(
        x
    )  # the Fisher matrix of each sample, averaged
    c = (p - np.eye(3)[np.asarray(y)]) / len(x)
    g, gradient = np.einsum("nap,nab,nbq->pq", j, m, j), np.einsum("nap,na->p", j, c)
    dense = np.linalg.pinv(g, rcond=1e-10, hermitian=True) @ gradient

    vector, _ = ravel_pytree(ng.vector)
    error = float(np.linalg.norm(np.asarray(vector) - dense) / np.linalg.norm(dense))
    print(
        f"dense formula   rank {np.linalg.matrix_rank(g, tol=1e-10 * np.linalg.norm(g, 2))}, "
        f"relative difference {error:.0e}"
    )
    if not error < 1e-8:
        raise SystemExit("The dense formula and pullback disagree.")

    # Other parameters, θ = sinh(η): another vector, the same motion of the probabilities.
    curved = pb.Composite(
        lambda eta, x: mlp(jax.tree.map(jnp.sinh, eta), x), metric=pb.metric.Categorical()
    )
    other = pb.natural_gradient(curved, jax.tree.map(jnp.arcsinh, params), (x, y))
    mapped, _ = ravel_pytree(
        jax.tree.map(lambda v, t: v * jnp.sqrt(1 + t**2), other.vector, params)
    )
    seen = lambda motion: np.einsum("nab,nb->na", m, np.asarray(motion))
    apart = float(np.linalg.norm(mapped - vector) / np.linalg.norm(vector))
    same = float(
        np.linalg.norm(seen(other.pushforward) - seen(ng.pushforward))
        / np.linalg.norm(seen(ng.pushforward))
    )
    print(
        f"reparametrised  vectors differ by {apart:.0%}, what the metric sees of the motion by "
        f"{same:.0e}"
    )
    if not same < 1e-10:
        raise SystemExit("The motion depends on the parametrisation.")


if __name__ == "__main__":
    main()
