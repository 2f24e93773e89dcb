"""Complex layers keep their factors: the kernel from them is that of the dense real Jacobian."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from complex_models import complex_normal, flat, normal

import pullback as pb
from pullback._gram.structured import find
from pullback._rows.rows import rows_at

X = normal(4, 6, seed=1)
TOKENS = jnp.asarray([[0, 3], [2, 2], [1, 4], [3, 0]])
DENSE = {
    "w": complex_normal(6, 7, seed=2) / 4,
    "b": complex_normal(7, seed=3),
    "v": complex_normal(7, 2, seed=4),
    "a": normal(6, 7, seed=5) / 4,
}


def dense(p, x):
    """A complex layer with a bias, a real one beside it, and a complex read-out."""
    z = jnp.log(jnp.cosh(x.astype(complex) @ p["w"] + p["b"][None]))
    return (z + jnp.tanh(x @ p["a"]).astype(complex)) @ p["v"]


def looked_up(p, x):
    h = jnp.tanh(p["table"][x] @ p["w"])
    return jnp.sum(h, axis=1) @ p["v"]


def convolved(p, x):
    z = jax.lax.conv_general_dilated(
        x.astype(complex)[:, None, :],
        p["k"],
        (1,),
        "VALID",
        dimension_numbers=("NCH", "OIH", "NCH"),
    )
    return jnp.tanh(z).reshape(x.shape[0], -1) @ p["v"]


def repeated(p, x):
    """The same complex layer three times, in a loop; a real network with a complex output."""
    turn = lambda h, _: (jnp.tanh(h @ p["w"] + p["b"][None]), None)
    h, _ = jax.lax.scan(turn, x.astype(complex), length=3)
    angle = x @ p["a"]
    return h @ p["v"] + jax.lax.complex(jnp.cos(angle), jnp.sin(angle))


def real_weights(p, x):
    """Real weights of a complex input, once with a real bias, once with a complex one."""
    u = x.astype(complex) * p["c"][None]
    with jax.numpy_dtype_promotion("standard"):  # `@` then multiplies complex by real numbers
        h = jnp.tanh(u @ p["w"] + p["b"][None])
        return jnp.tanh(h @ p["v"] + p["d"][None])


def real_table(p, x):
    """Real entries of a table, each multiplied by a complex number of its position."""
    with jax.numpy_dtype_promotion("standard"):
        return jnp.sum(p["table"][x] * p["c"][None, :, None], axis=1) @ p["v"]


CASES = {
    "real weights": (
        real_weights,
        {"w": normal(6, 7, seed=15) / 4, "b": normal(7, seed=16), "c": complex_normal(6, seed=17),
         "v": normal(7, 2, seed=18) / 4, "d": complex_normal(2, seed=19)},
        X,
    ),
    "real table": (
        real_table,
        {"table": normal(5, 6, seed=6), "c": complex_normal(2, seed=7), "v": normal(6, 2, seed=8)},
        TOKENS,
    ),
    "dense": (dense, DENSE, X),
    "looked up": (
        looked_up,
        {"table": complex_normal(5, 6, seed=6), "w": complex_normal(6, 8, seed=7) / 4,
         "v": complex_normal(8, 2, seed=8)},
        TOKENS,
    ),
    "convolved": (
        convolved,
        {"k": complex_normal(3, 1, 3, seed=9) / 2, "v": complex_normal(12, 2, seed=10)},
        X,
    ),
    "repeated": (
        repeated,
        {"w": complex_normal(6, 6, seed=11) / 4, "b": complex_normal(6, seed=12) / 4,
         "v": complex_normal(6, 2, seed=13), "a": normal(6, 2, seed=14)},
        X,
    ),
}  # fmt: skip


def jacobian(model, params, x):
    leaves, treedef = jax.tree.flatten(params)

    def outputs(parts):
        whole = [jax.lax.complex(p[..., 0], p[..., 1]) if jnp.iscomplexobj(q) else p
                 for p, q in zip(parts, leaves, strict=True)]  # fmt: skip
        z = model(jax.tree.unflatten(treedef, whole), x)
        return jnp.stack([z.real, z.imag], -1).ravel()

    pair = lambda p: jnp.stack([p.real, p.imag], -1) if jnp.iscomplexobj(p) else p
    blocks = jax.jit(jax.jacfwd(outputs))([pair(p) for p in leaves])
    return np.concatenate([np.asarray(b).reshape(b.shape[0], -1) for b in blocks], axis=1)


@pytest.mark.parametrize("name", CASES)
def test_the_kernel_of_complex_layers(name):
    model, params, x = CASES[name]
    loss = lambda z, y: jnp.sum(jnp.abs(z - y) ** 2, axis=1) / 2
    problem = pb.Composite(model, loss, pb.metric.Gaussian(jnp.asarray([0.5, 2.0])))
    y = complex_normal(4, 2, seed=20)
    rows = rows_at(problem.at((x, y)), params)
    found = find(rows)
    assert found is not None and (found.factors or name == "convolved")
    weights = np.tile(1 / np.array([0.5, 2.0]), 8) / 4
    j, r = jacobian(model, params, x), flat(model(params, x) - y) / 4
    g = j.T @ (weights[:, None] * j)
    expected = np.linalg.solve(g + 0.1 * np.eye(g.shape[0]), j.T @ r)
    solvers = [pb.solver.Dual(), pb.solver.Dual(structured=False), pb.solver.Primal()]
    if name == "dense":
        solvers.append(pb.solver.Krylov(preconditioner=pb.solver.SampleBlocks()))
        scaling = pb.solver.Diagonal().build(rows, jnp.asarray(0.1))
        np.testing.assert_allclose(scaling.values, np.diag(g) + 0.1, rtol=1e-12)
    for solver in solvers:
        ng = pb.natural_gradient(problem, params, (x, y), solver=solver, inverse=pb.Tikhonov(0.1))
        assert np.max(np.abs(flat(ng.vector) - expected)) < 1e-11, solver


def test_a_plan_names_complex_leaves():
    problem = pb.Composite(dense)
    shown = str(pb.plan(problem, DENSE, (normal(64, 6),), inverse=pb.Tikhonov(0.1)))
    assert "['w']: factors 7 x 14 at 2 positions" in shown and "['b']: with ['w']" in shown
