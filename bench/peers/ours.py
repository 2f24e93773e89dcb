"""pullback: the default call, the generic route, and single products."""

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np

from ..models import MODELS, loss
from ..problems import REPEATS, Workload, find, flat, make
from ..worker import Approach

PACKAGES = ("pullback", "jax", "jaxlib", "equinox", "lineax")


def generic(pb, workload: Workload, size: int):
    """The solver that forms J, on the smaller side."""
    solver = pb.solver.Dual if workload.rows < size else pb.solver.Primal
    return solver(structured=False)


def _solvers(pb, workload: Workload, size: int):
    """Approach -> how its solver is made."""
    return {
        "default": lambda: None,
        "whole": lambda: None,
        "undeclared": lambda: None,
        "generic": lambda: generic(pb, workload, size),
        "krylov": lambda: pb.solver.Krylov(),
        "dual": lambda: pb.solver.Dual(),
        "primal": lambda: pb.solver.Primal(),
        "svd": lambda: pb.solver.SVD(),
    }


def _laplacian(pb):
    """Δu of the tanh network u as a user of the library writes it."""

    def model(params, x):
        u = lambda y: MODELS["mlp"](params, y)
        return jax.vmap(lambda y: pb.pde.laplacian(u, y))(x)

    return model


def problem(pb, workload: Workload, declared: bool = True):
    """The composite problem of a workload; `declared`: whether it says that it is holomorphic."""
    model = _laplacian(pb) if workload.kind == "laplacian" else MODELS[workload.kind]
    if workload.scores:
        log_psi = lambda p, x: model(p, x)[:, 0]
        return pb.Composite(log_psi, lambda z, e: 2 * e * z, pb.metric.Scores())
    if workload.kind == "complex":
        square = lambda z, y: jnp.sum(jnp.real(z - y) ** 2 + jnp.imag(z - y) ** 2, -1) / 2
        return pb.Composite(model, square, holomorphic=declared)
    if workload.softmax:
        return pb.Composite(model, metric=pb.metric.Categorical())
    return pb.Composite(model, lambda z, y: jnp.sum((z - y) ** 2, -1) / 2)


def _compiled(function, *args, vector=lambda out: out) -> Approach:
    """A function compiled once, with the compiler options of the library's own programs; `vector`
    takes what is compared from what it returns.
    """
    from pullback._compat.xla import options

    state, given = {}, options(jaxlib.__version__)

    def prepare():
        state["run"] = jax.jit(function).lower(*args).compile(compiler_options=given)

    return Approach(
        lambda: jax.block_until_ready(state["run"](*args)), lambda out: flat(vector(out)), prepare
    )


def _gradients(workload: Workload, params, batch) -> Approach:
    """A chain of gradients, each at a point that depends on the one before, so that none is
    hoisted.
    """

    def run(params, batch):
        def step(p, _):
            g = jax.grad(lambda p: loss(workload, p, batch))(p)
            return jax.tree.map(lambda p, g: p - 1e-6 * g, p, g), None

        return jax.lax.scan(step, params, length=REPEATS)[0]

    return _compiled(run, params, batch)


def kernel_product(rows):
    """y ↦ K y: from the factors of the layers if the model's structure is known, else A Aᵀ y."""
    from pullback._gram.kernel import product
    from pullback._gram.structured import find, structured_factors

    plan = find(rows)
    if plan is None:
        return lambda y: rows.mv(rows.rmv(y))
    factors = structured_factors(rows, plan, rows.scale)
    return lambda y: product(factors, y)


def _products(pb, workload: Workload, params, batch, dual: bool) -> Approach:
    """A chain of products with K or with G after one linearisation."""

    def run(params, batch):
        rows = pb.pullback(problem(pb, workload), params, batch).whitened
        start = jnp.ones(rows.shape[0 if dual else 1], rows.dtype)
        apply = kernel_product(rows) if dual else lambda v: rows.rmv(rows.mv(v))

        def step(v, _):
            w = apply(v)
            return w / jnp.linalg.norm(w), None

        return [jax.lax.scan(step, start, length=REPEATS)[0]]

    return _compiled(run, params, batch)


def _matrix_product(pb, workload: Workload, approach: str) -> Approach:
    what, _, depth = approach.partition("-")
    weights, (_, target) = make(workload)
    weights = [jnp.asarray(w) for w in weights[: int(depth)]]
    target = jnp.asarray(target)

    def value(weights):
        total = weights[0]
        for w in weights[1:]:
            total = total @ w
        return jnp.sum((total - target) ** 2) / 2

    if what == "gradient":
        return _compiled(jax.grad(value), weights)
    form = pb.linear.MatrixProduct(int(depth))
    return _compiled(lambda w: form.split(w, target), weights)


def build(name: str, approach: str) -> Approach:
    """An approach of pullback on a workload.

    `default` (the vector alone, so that XLA removes what only the certificate and the statistics
    need), `whole` (the whole call), `undeclared` (not said to be holomorphic), `generic`, `krylov`,
    `dual`, `primal`, `svd`; `gradients`, `metric-products`, `kernel-products`; for W5 `gradient-3`,
    `closed-3`, ...
    """
    workload = find(name)
    jax.config.update("jax_enable_x64", workload.dtype != "float32")
    import pullback as pb

    if workload.kind == "product":
        return _matrix_product(pb, workload, approach)
    params, batch = make(workload)
    size = sum(np.size(x) for x in jax.tree.leaves(params))
    params, batch = jax.tree.map(jnp.asarray, (params, batch))
    if approach == "gradients":
        return _gradients(workload, params, batch)
    if approach.endswith("-products"):
        return _products(pb, workload, params, batch, dual=approach.startswith("kernel"))
    composite = problem(pb, workload, approach != "undeclared")
    solver = _solvers(pb, workload, size)[approach]()

    def whole(params, batch):
        ng = pb.natural_gradient(
            composite,
            params,
            batch,
            inverse=pb.Tikhonov(workload.damping),
            solver=solver,
            throw=False,
        )
        # A result is an enumeration item; its code is the array in it.
        return ng.vector, jax.tree.leaves(ng)

    if approach == "whole":
        return _compiled(whole, params, batch, vector=lambda out: out[0])
    return _compiled(lambda params, batch: whole(params, batch)[0], params, batch)
