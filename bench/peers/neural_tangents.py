"""neural-tangents: its empirical kernel of the logits, (N, N, C, C), by structured derivatives or
by Jacobian contraction.

The whitening of the kernel by the softmax factor of rank C - 1, the Cholesky solve and the last
pull are written here.
"""

import jax
import jax.numpy as jnp

from ..models import MODELS, whitening
from ..problems import WORKLOADS, flat, make
from ..worker import Approach

PACKAGES = ("neural-tangents", "jax", "jaxlib")


def build(name: str, approach: str) -> Approach:
    """An approach of neural-tangents on a workload: `structured` or `jacobian`."""
    workload = WORKLOADS[name]
    jax.config.update("jax_enable_x64", workload.dtype == "float64")
    import neural_tangents as nt

    implementation = {
        "structured": nt.NtkImplementation.STRUCTURED_DERIVATIVES,
        "jacobian": nt.NtkImplementation.JACOBIAN_CONTRACTION,
    }[approach]
    params, batch = jax.tree_util.tree_map(jnp.asarray, make(workload))
    model = MODELS[workload.kind]
    kernel = nt.empirical_ntk_fn(
        lambda params, x: model(params, x),
        trace_axes=(),
        diagonal_axes=(),
        vmap_axes=0,
        implementation=implementation,
    )

    def solve(params, batch):
        x, y = batch
        z, pull = jax.vjp(lambda p: model(p, x), params)
        root, r = whitening(workload, z, y)
        m = r.size
        white = jnp.einsum(
            "nkab,naq,kbp->nqkp", kernel(x, None, params), root, root, optimize=True
        ).reshape(m, m)
        factor = jax.scipy.linalg.cho_factor(
            white + workload.damping * jnp.eye(m, dtype=white.dtype), lower=True
        )
        solved = jax.scipy.linalg.cho_solve(factor, r.ravel()).reshape(r.shape)
        return pull(jnp.einsum("naq,nq->na", root, solved))[0]

    state = {}

    def prepare():
        state["run"] = jax.jit(solve).lower(params, batch).compile()

    return Approach(lambda: jax.block_until_ready(state["run"](params, batch)), flat, prepare)
