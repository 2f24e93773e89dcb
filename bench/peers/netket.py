"""NetKet: the dense Jacobian of log-amplitudes and its SR and minSR updates.

NetKet differentiates scalar functions of one sample. The softmax Fisher metric is Σ over (x, c) of
p(c|x)/N ∇log p(c|x) ∇log p(c|x)ᵀ, so every input appears C times, once with each class; the weights
√(p/N) and the right-hand side dv, with Oᵀdv = g, are written here. Centring is off. On
log-amplitudes the update is that of its driver `VMC_SR`, from the same samples and local energies.
"""

import jax
import jax.numpy as jnp

from ..models import MODELS
from ..problems import WORKLOADS, Workload, flat, make
from ..worker import Approach

PACKAGES = ("netket", "jax", "jaxlib")


def _joint(workload: Workload, params, batch):
    """Samples (inputs with the class as last column), weights and right-hand side."""
    x, y = batch
    n = workload.samples
    classes = workload.classes
    z = MODELS[workload.kind](params, x)
    if not workload.softmax:
        return x, jnp.full(n, 1 / n, x.dtype), (z - y).ravel() / n**0.5
    p = jax.nn.softmax(z)
    column = jnp.tile(jnp.arange(classes, dtype=x.dtype), n)[:, None]
    dv = -jax.nn.one_hot(y, classes, dtype=x.dtype) / jnp.sqrt(n * p)
    return jnp.concatenate([jnp.repeat(x, classes, 0), column], 1), (p / n).ravel(), dv.ravel()


def _wave(workload: Workload, approach: str) -> Approach:
    """What `VMC_SR` does with samples and local energies: its default, or one of its other ways."""
    import netket as nk
    from netket._src.ngd.sr_srt_common import sr, srt
    from netket._src.ngd.srt_onthefly import srt_onthefly

    jax.config.update("jax_enable_x64", True)
    update = {"vmc_sr": srt_onthefly, "minsr": srt, "sr": sr}[approach]
    params, (spins, energies) = jax.tree.map(jnp.asarray, make(workload))
    log_psi = lambda variables, x: MODELS[workload.kind](variables["params"], x)[..., 0]

    def run():
        found, _, _ = update(
            log_psi,
            energies,
            params,
            {},
            spins,
            diag_shift=workload.damping,
            solver_fn=nk.optimizer.solver.cholesky_with_fallback,
            mode="real",
        )
        return jax.block_until_ready(found)

    return Approach(run, flat)


def build(name: str, approach: str) -> Approach:
    """An approach of NetKet on a workload: `minsr`, `sr`, or the default of `vmc_sr`."""
    workload = WORKLOADS[name]
    if workload.scores:
        return _wave(workload, approach)
    jax.config.update("jax_enable_x64", workload.dtype == "float64")
    import netket as nk
    from netket._src.ngd.sr import _compute_sr_update
    from netket._src.ngd.srt import _compute_srt_update

    jax.config.update("jax_enable_x64", workload.dtype == "float64")
    update = {"minsr": _compute_srt_update, "sr": _compute_sr_update}[approach]
    params, batch = jax.tree.map(jnp.asarray, make(workload))
    model = MODELS[workload.kind]

    def amplitude(variables, sample):
        if not workload.softmax:
            return model(variables["params"], sample)[..., 0]
        logits = jax.nn.log_softmax(model(variables["params"], sample[..., :-1]))
        return jnp.take_along_axis(logits, sample[..., -1:].astype(int), axis=-1)[..., 0]

    @jax.jit
    def prepare(params, batch):
        return _joint(workload, params, batch)

    @jax.jit
    def weigh(jacobian, weights):
        return jacobian * jnp.sqrt(weights)[:, None]

    _, unravel = jax.flatten_util.ravel_pytree(params)

    def run():
        samples, weights, dv = prepare(params, batch)
        rows = weigh(nk.jax.jacobian(amplitude, params, samples, mode="real", dense=True), weights)
        found, _, _ = update(
            rows,
            dv,
            diag_shift=workload.damping,
            solver_fn=nk.optimizer.solver.cholesky,
            mode="real",
            params_structure=params,
        )
        return jax.block_until_ready(found)

    return Approach(run, lambda v: flat(unravel(v)))
