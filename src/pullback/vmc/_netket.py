r"""NetKet's variational states as problems, and our natural gradient in NetKet's drivers.

NetKet's gradient of a real parameter is \(2\,\mathrm{Re}\,F\), the derivative of the energy, and
its \(S\) is the covariance of the log-derivatives, both as here. So `netket_preconditioner` returns
\((S + \lambda)^{-1}\,2\,\mathrm{Re}\,F\), the vector of NetKet's `SR(diag_shift=λ)`.
"""

import contextlib
import importlib.metadata
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy  # its parts load when they are used: by name they would change warning filters
from jaxtyping import PRNGKeyArray

from .._base.checks import instance
from .._base.types import Params
from .._compat.xla import jit
from .._natural.pullback_metric import pullback
from .._problem.batch import Batch
from .._problem.composite import Composite
from ..inverse import AbstractInverse, Tikhonov
from ..solver import AbstractSolver
from ._born import Born
from ._energy import (
    Configurations,
    LogAmplitudes,
    Matrix,
    amplitudes,
    local_parts,
    parts_of,
    problem,
)
from ._full_sum import padded
from ._hamiltonian import AbstractHamiltonian

OLDEST = (3, 23)
"""The oldest version of NetKet that this works with."""


class FromNetKet(NamedTuple):
    """A problem, where to start, and batches for `fit`."""

    problem: Composite
    params: Params
    batches: Any


class Operator(AbstractHamiltonian):
    """An operator of NetKet."""

    operator: Any
    sites: int = eqx.field(static=True)
    magnetisation: int | None = eqx.field(static=True, default=None)

    def connected(self, spins):
        return self.operator.get_conn_padded(spins)


class NetKetChains(eqx.Module):
    """A sampler for `fit`: the samples of a sampler of NetKet, with their local energies."""

    energy: Composite
    sampler: Any
    start: Any
    """The state of the chains of the `MCState`."""
    length: int = eqx.field(static=True)
    discarded: int = eqx.field(static=True)
    chunk: int | None = eqx.field(static=True)

    def init(self, key: PRNGKeyArray, params: Params) -> Any:
        """Return the chains where the `MCState` has them, so that both draw the same samples.

        **Arguments:**

        - `key`: not used; `MCState(..., seed=)` decides.
        - `params`: not used.
        """
        return self.start

    def draw(self, key: PRNGKeyArray, params: Params, state: Any) -> tuple[Batch, Any]:
        """Return a batch with its local energies, and the state after it.

        **Arguments:**

        - `key`: not used; the state has a key of its own.
        - `params`: the parameters of the wave function.
        - `state`: the state of NetKet's sampler.
        """
        log_psi, hamiltonian = parts_of("from_netket", self.energy)
        sampler, wave = self.sampler, (log_psi.apply, log_psi.variables(params))
        state = sampler.reset(*wave, state=state)
        if self.discarded:
            _, state = sampler.sample(*wave, state=state, chain_length=self.discarded)
        spins, state = sampler.sample(*wave, state=state, chain_length=self.length)
        spins = _floating(spins.reshape(-1, spins.shape[-1]))
        log_q = sampler.machine_pow * amplitudes(log_psi, params, spins)[0]
        targets = local_parts(log_psi, hamiltonian, params, spins, self.chunk)
        return Batch(Configurations(spins, log_q), targets), state


def from_netket(vstate: Any, hamiltonian: Any) -> FromNetKet:
    """The energy of a NetKet state as a problem, its parameters, and its batches.

    ```python
    energy, params, batches = pb.vmc.from_netket(vstate, hamiltonian)
    opt = pb.NaturalGradientDescent(energy, step=0.05, inverse=pb.Tikhonov(1e-3))
    fit = pb.fit(opt, params, batches, steps=300)
    vstate.parameters = fit.params
    ```

    **Arguments:**

    - `vstate`: an `MCState`, whose sampler draws the batches with its own seed, from its own
        chains: the samples of a NetKet driver. Or a `FullSumState`, whose batch is all
        configurations.
    - `hamiltonian`: an operator of NetKet on the same Hilbert space.
    """
    netket = import_netket()
    states: Any = (netket.vqs.MCState, netket.vqs.FullSumState)
    instance(
        "from_netket", "vstate", vstate, states, "an MCState or a FullSumState of NetKet",
        "from_netket(nk.vqs.MCState(sampler, model), H)",
    )  # fmt: skip
    instance(
        "from_netket", "hamiltonian", hamiltonian, netket.operator.DiscreteOperator,
        "an operator of NetKet", "from_netket(vstate, nk.operator.Ising(...))",
    )  # fmt: skip
    if hamiltonian.hilbert != vstate.hilbert:
        raise ValueError(
            f"from_netket: the operator acts on {hamiltonian.hilbert}, the state is one of "
            f"{vstate.hilbert}. Give both the same Hilbert space."
        )
    if not isinstance(hamiltonian, netket.operator.DiscreteJaxOperator):
        hamiltonian = hamiltonian.to_jax_operator()
    energy = problem(log_psi_of(vstate), Operator(hamiltonian, vstate.hilbert.size))
    if isinstance(vstate, netket.vqs.FullSumState):
        return FromNetKet(energy, vstate.parameters, _everything(vstate, hamiltonian))
    chains = NetKetChains(
        energy, vstate.sampler, vstate.sampler_state, vstate.chain_length,
        vstate.n_discard_per_chain, vstate.chunk_size,
    )  # fmt: skip
    return FromNetKet(energy, vstate.parameters, chains)


class NetKetPreconditioner(eqx.Module):
    """The natural gradient as a `preconditioner=` of NetKet's drivers."""

    inverse: AbstractInverse
    solver: AbstractSolver | None

    def __call__(self, vstate: Any, gradient: Any, step: Any = None) -> Any:
        """Return the natural gradient of a gradient.

        **Arguments:**

        - `vstate`: the state, with its samples.
        - `gradient`: the gradient of the energy, of the structure of the parameters.
        - `step`: not used.
        """
        wave = Composite(LogAmplitudes(log_psi_of(vstate)), metric=Born())
        if hasattr(vstate, "samples"):
            spins = _floating(vstate.samples.reshape(-1, vstate.samples.shape[-1]))
            power = vstate.sampler.machine_pow
        else:
            spins, power = _floating(vstate.hilbert.all_states()), 0.0
        if any(jnp.iscomplexobj(x) for x in jax.tree.leaves((gradient, vstate.parameters))):
            raise ValueError(
                "netket_preconditioner takes real parameters. Give the model real ones, e.g. "
                "nk.models.RBM(param_dtype=float), or use from_netket(vstate, H) and fit."
            )
        return _precondition(self, wave, vstate.parameters, spins, power, gradient)


@jit
def _precondition(given: NetKetPreconditioner, wave, params, spins, power, gradient) -> Any:
    """Return the natural gradient; raises if it does not solve its equations."""
    log_q = power * amplitudes(wave.model.log_psi, params, spins)[0]
    batch = Batch(Configurations(spins, log_q), None)
    geometry = pullback(wave, params, batch, inverse=given.inverse, solver=given.solver)
    return geometry.sharp(gradient)


def netket_preconditioner(
    inverse: AbstractInverse | None = None, solver: AbstractSolver | None = None
) -> NetKetPreconditioner:
    """The natural gradient as a preconditioner: `nk.driver.VMC(H, opt, preconditioner=...)`.

    ```python
    preconditioner = pb.vmc.netket_preconditioner(pb.Tikhonov(1e-3))
    driver = nk.driver.VMC(H, nk.optimizer.Sgd(0.05), variational_state=vstate,
                           preconditioner=preconditioner)
    ```

    **Arguments:**

    - `inverse`: which inverse; defaults to `Tikhonov(0.01)`, as NetKet's `SR(diag_shift=0.01)`.
    - `solver`: how it is computed; defaults to `solver.Auto()`.
    """
    import_netket()
    inverse = Tikhonov(0.01) if inverse is None else inverse
    instance(
        "netket_preconditioner", "inverse", inverse, AbstractInverse, "one of pullback.inverse",
        "netket_preconditioner(pullback.Tikhonov(1e-3))",
    )  # fmt: skip
    return NetKetPreconditioner(inverse, solver)


def import_netket() -> Any:
    """Return the module `netket`; raise an `ImportError` if it is missing or too old."""
    # Before the import: an old NetKet may fail in it, on a JAX that is newer than it knows.
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        check_version(importlib.metadata.version("netket"))
    try:
        import netket  # pyright: ignore[reportMissingImports]
    except ImportError as missing:
        raise ImportError("This needs NetKet: pip install 'pullback[netket]'.") from missing
    check_version(netket.__version__)
    return netket


def check_version(version: str) -> None:
    """Raise an `ImportError` if a version of NetKet is too old."""
    numbers = tuple(int(x) for x in version.split(".")[:2] if x.isdigit())
    if numbers < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ImportError(
            f"NetKet {version} is too old; pullback needs {oldest} or newer: "
            f"pip install 'netket>={oldest}'."
        )


class LogPsi(eqx.Module):
    """The logarithm of the wave function of a NetKet state, with its other variables."""

    apply: Any = eqx.field(static=True)
    rest: Any

    def __call__(self, params: Params, spins: Any) -> Any:
        """Return log ψ of a batch of configurations."""
        return self.apply(self.variables(params), spins)

    def variables(self, params: Params) -> Any:
        """Return all variables of the model."""
        return {"params": params, **self.rest}


def log_psi_of(vstate: Any) -> LogPsi:
    """Return the wave function of a NetKet state as a function of parameters and configurations."""
    return LogPsi(vstate._apply_fun, dict(vstate.model_state))


def _everything(vstate: Any, operator: Any) -> Batch:
    """Return the batch of all configurations of a Hilbert space."""
    spins = _floating(vstate.hilbert.all_states())
    matrix = operator.to_sparse()
    # JAX and SciPy have sparse formats of their own.
    rows = (matrix.toarray if hasattr(matrix, "toarray") else matrix.todense)()
    index, elements = padded(scipy.sparse.csr_matrix(np.array(rows)))
    if np.any(np.imag(elements) != 0):
        raise ValueError(
            "from_netket: the operator has complex elements, which a full sum does not take. Use "
            "an MCState, or an operator that is real."
        )
    inputs = Configurations(spins, jnp.zeros(len(spins), spins.dtype))
    return Batch(inputs, Matrix(jnp.asarray(index), jnp.asarray(np.real(elements), spins.dtype)))


def _floating(spins: Any) -> Any:
    return jnp.asarray(spins).astype(jnp.result_type(float))
