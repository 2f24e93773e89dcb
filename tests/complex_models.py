"""One function with complex, paired and mixed parameters, and its dense real Jacobian."""

import jax
import jax.numpy as jnp
import numpy as np


def normal(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape))


def complex_normal(*shape, seed=0):
    return jax.lax.complex(normal(*shape, seed=seed), normal(*shape, seed=seed + 100))


def paired(x):
    return jnp.stack([x.real, x.imag], axis=-1)


COMPLEX = {
    # Away from the poles of tanh.
    "w": 0.3 * complex_normal(3, 2, seed=1),
    "b": 0.3 * complex_normal(2, seed=2),
    "v": complex_normal(2, seed=3),
    "s": normal(2, seed=4),
}
PAIRED = {name: paired(x) if name != "s" else x for name, x in COMPLEX.items()}
MIXED = COMPLEX | {"b": PAIRED["b"], "v": PAIRED["v"]}
FORMS = {"complex": COMPLEX, "paired": PAIRED, "mixed": MIXED}
X = normal(5, 3, seed=5)
Y = complex_normal(5, seed=6)
BATCH = (X, Y)


def whole(params):
    """The complex parameters of any form."""
    one = lambda x: x if jnp.iscomplexobj(x) else jax.lax.complex(x[..., 0], x[..., 1])
    return {name: x if name == "s" else one(x) for name, x in params.items()}


def model(params, x):
    """Not holomorphic: |h| and real parameters are in it."""
    params = whole(params)
    cast = lambda x: x.astype(params["w"].dtype)
    h = jnp.tanh(cast(x) @ params["w"] + params["b"][None])
    return h @ params["v"] + cast(params["s"][0] * jnp.abs(h[:, 0]) + params["s"][1])


def model_in_pairs(params, x):
    return paired(model(params, x))


def loss(z, y):
    return jnp.abs(z - y) ** 2 / 2


def loss_in_pairs(z, y):
    return jnp.sum((z - y) ** 2, axis=-1) / 2


def flat(tree):
    """Real numbers in the order of the leaves, a pair for a complex one; of any form."""
    leaves = [np.asarray(x) for x in jax.tree.leaves(tree)]
    parts = [np.stack([x.real, x.imag], -1) if np.iscomplexobj(x) else x for x in leaves]
    return np.concatenate([x.ravel() for x in parts])


def unflat(vector, like=COMPLEX):
    """The inverse of `flat`."""
    found, start = {}, 0
    for name in sorted(like):
        shape = like[name].shape
        if jnp.iscomplexobj(like[name]):
            pair = vector[start : start + 2 * like[name].size].reshape(*shape, 2)
            found[name] = jax.lax.complex(pair[..., 0], pair[..., 1])
            start += 2 * like[name].size
        else:
            found[name] = vector[start : start + like[name].size].reshape(shape)
            start += like[name].size
    return found


def jacobian(x=X, params=COMPLEX, function=model):
    """J, real: rows are real and imaginary part of each output."""
    outputs = lambda v: paired(function(unflat(v, params), x)).ravel()
    return np.asarray(jax.jit(jax.jacfwd(outputs))(jnp.asarray(flat(params))))


def residual(x=X, y=Y):
    return flat(model(COMPLEX, x) - y)


def distance(a, b):
    return float(np.max(np.abs(flat(a) - flat(b))))
