r"""The energy as a composite problem: \(E = \langle\psi|H|\psi\rangle / \langle\psi|\psi\rangle\).

With the local energies \(e_i = \sum_{\sigma'} H_{\sigma_i\sigma'}\,\psi(\sigma')/\psi(\sigma_i)\)
and Born's probabilities \(p(z)\) of the outputs (`_born.py`),

\[ E = \sum_i p_i\, e_i, \qquad \frac{\partial E}{\partial \log|\psi_i|} = 2 p_i\,\mathrm{Re}(e_i -
   E), \qquad \frac{\partial E}{\partial \arg\psi_i} = 2 p_i\,\mathrm{Im}(e_i - E) , \]

for a symmetric (Hermitian) \(H\). On *all* configurations \(e\) is a function of the outputs, and
\(E\) is differentiated as it stands. On *samples* \(e\) is data, computed at the parameters at
which the samples were drawn, and the loss

\[ L(z) = \sum_i p_i(z)\,\mathrm{Re}\,e_i + 2\sum_i p_i\,\mathrm{Im}(e_i - E)\,(\varphi_i -
   \varphi_i^{\text{fixed}}) \]

has the value of the energy and its differential. The mean of the imaginary parts is zero on all
configurations, and noise on samples; with it, the gradient would depend on the phase of the whole
wave function. There \(\partial p_i/\partial z_j = 2
(p_i\delta_{ij} - p_i p_j)\) makes the covariance gradient. Away from those parameters \(L\) is a
reweighted estimate with old local energies: use it with short steps or a trust region.

The factor 2 is part of the gradient, and \(M\) is the covariance without it. So the natural
gradient is \(S^+\,2F\) with \(F = \mathrm{Re}\langle (e - E)^* \partial\log\psi\rangle\): a step
of rate \(\eta\) is \(2\eta\) of imaginary time.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._base.checks import error, function, instance
from .._base.functions import canonical
from .._base.types import Params, Scalar
from .._problem.composite import Composite
from ._born import Born, Signed, probabilities
from ._hamiltonian import AbstractHamiltonian


class Configurations(NamedTuple):
    """The inputs of a batch: configurations, and the logarithms of what they were drawn from."""

    spins: Float[Array, "N sites"]
    log_q: Float[Array, " N"]


class Matrix(NamedTuple):
    """The targets of a full sum: the rows of H in the basis of the batch, K entries each."""

    index: Int[Array, "N K"]
    elements: Float[Array, "N K"]


class LocalEnergies(NamedTuple):
    """The targets of samples."""

    real: Float[Array, " N"]
    imaginary: Float[Array, " N"] | None = None


class LogAmplitudes(eqx.Module):
    """The model: log|ψ| - log(q)/2, with signs or phases."""

    log_psi: Callable

    def __call__(self, params: Params, inputs: Configurations) -> Any:
        """Return the outputs of a batch of configurations."""
        log, sign, phase = amplitudes(self.log_psi, params, inputs.spins)
        log = log - inputs.log_q.astype(log.dtype) / 2
        if phase is not None:
            return jnp.stack([log, phase], axis=-1)
        return log if sign is None else Signed(log, sign)


class Energy(eqx.Module):
    """The loss: the energy of the outputs, with local energies or a matrix as targets."""

    hamiltonian: AbstractHamiltonian

    def __call__(self, outputs: Any, targets: LocalEnergies | Matrix) -> Scalar:
        """Return the energy."""
        log, sign, phase = _parts(outputs)
        p = probabilities(log)
        if isinstance(targets, Matrix):
            real, _ = _of_matrix(targets, log, sign, phase)
            return jnp.sum(p * real)
        real, imaginary = targets
        value = jnp.sum(p * real)
        if imaginary is None or phase is None:
            return value
        fixed = jax.lax.stop_gradient
        apart = imaginary - jnp.sum(fixed(p) * imaginary)
        return value + 2 * jnp.sum(fixed(p) * apart * (phase - fixed(phase)))


def problem(log_psi: Callable, hamiltonian: AbstractHamiltonian) -> Composite:
    """The energy of a wave function as a problem, with the Fubini-Study metric.

    ```python
    energy = pb.vmc.problem(log_psi, pb.vmc.ising(pb.vmc.Lattice((10,)), field=1.0))
    opt = pb.NaturalGradientDescent(energy)
    fit = pb.fit(opt, params, pb.vmc.full_sum(energy), steps=200)
    ```

    The batches are `full_sum(energy)`, all configurations, or `Metropolis(energy, chains)`,
    samples.

    **Arguments:**

    - `log_psi`: `log_psi(params, spins)` for spins ±1 of shape (N, sites) returns the N logarithms
        of the amplitudes: real ones of a positive wave function, complex ones, or a pair
        (log|ψ|, sign), the sign real or complex. What `jnp.linalg.slogdet` returns may be returned
        as it is: its fields have names.
    - `hamiltonian`: `ising`, `heisenberg`, `j1j2`, or an `AbstractHamiltonian` of your own.
    """
    function("vmc.problem", "log_psi", log_psi, "vmc.problem(lambda params, spins: ..., H)")
    wanted = "an operator on spins, an AbstractHamiltonian"
    example = "vmc.problem(log_psi, vmc.ising(vmc.Lattice((10,)), field=1.0))"
    instance("vmc.problem", "hamiltonian", hamiltonian, AbstractHamiltonian, wanted, example)
    return Composite(LogAmplitudes(canonical(log_psi)), Energy(hamiltonian), Born())


def parts_of(owner: str, energy: Any) -> tuple[Callable, AbstractHamiltonian]:
    """Return the wave function and the operator of a problem; raise if it is none of `problem`."""
    if not isinstance(energy, Composite) or not isinstance(energy.loss, Energy):
        example = f"{owner}(vmc.problem(log_psi, hamiltonian))"
        raise error(owner, "energy", energy, "a problem made by vmc.problem", example)
    return energy.model.log_psi, energy.loss.hamiltonian


def amplitudes(
    log_psi: Callable, params: Params, spins: Float[Array, "N sites"]
) -> tuple[Array, Array | None, Array | None]:
    """Return log-moduli, and signs or phases if there are any, of a batch of configurations."""
    made: Any = log_psi(params, spins)
    if hasattr(made, "logabsdet"):
        # jnp.linalg.slogdet has the sign first.
        made = made.logabsdet, made.sign
    pair = isinstance(made, tuple | list) and len(made) == 2
    log: Any = made[0] if pair else made
    sign: Any = made[1] if pair else None
    shapes = [jnp.shape(x) for x in (log, *(() if sign is None else (sign,)))]
    if any(shape != spins.shape[:1] for shape in shapes):
        raise ValueError(
            f"log_psi(params, spins) must return one number per configuration, of shape "
            f"{spins.shape[:1]} for spins of shape {spins.shape}, or a pair (log|ψ|, sign), got "
            f"{' and '.join(map(str, shapes))}. A function of one configuration is batched by "
            "jax.vmap(f, (None, 0))."
        )
    if jnp.iscomplexobj(log) or jnp.iscomplexobj(sign):
        phase = jnp.imag(log)
        phase = phase if sign is None else phase + jnp.angle(sign).astype(phase.dtype)
        return jnp.real(log), None, phase
    return log, None if sign is None else jnp.sign(sign).astype(jnp.int8), None


def local_energies(
    energy: Composite,
    params: Params,
    spins: Float[Array, "N sites"],
    chunk: int | None = None,
) -> Array:
    """The local energies Σ H_σσ' ψ(σ')/ψ(σ), complex for a complex wave function.

    **Arguments:**

    - `energy`: a problem made by `vmc.problem`.
    - `params`: the parameters of the wave function.
    - `spins`: configurations, of shape (N, sites).
    - `chunk`: how many of them to evaluate at a time; defaults to all.
    """
    log_psi, hamiltonian = parts_of("local_energies", energy)
    if spins.ndim != 2 or spins.shape[1] != hamiltonian.sites:
        wanted = f"configurations of {hamiltonian.sites} sites, like the operator"
        raise error("local_energies", "spins", spins, f"{wanted}, not of shape {spins.shape}")
    found = local_parts(log_psi, hamiltonian, params, spins, chunk)
    return found.real if found.imaginary is None else jax.lax.complex(found.real, found.imaginary)


def local_parts(
    log_psi: Callable,
    hamiltonian: AbstractHamiltonian,
    params: Params,
    spins: Float[Array, "N sites"],
    chunk: int | None,
) -> LocalEnergies:
    """Return the local energies as real and imaginary parts."""

    def block(spins):
        moved, elements = jax.vmap(hamiltonian.connected)(spins)
        count, k, sites = moved.shape
        here = amplitudes(log_psi, params, spins)
        there = amplitudes(log_psi, params, moved.reshape(-1, sites))
        there = [None if x is None else x.reshape(count, k) for x in there]
        return LocalEnergies(*_ratios(elements, here, there))

    if chunk is None or chunk >= spins.shape[0]:
        return block(spins)
    one = lambda s: jax.tree.map(lambda x: x[0], block(s[None]))
    return jax.lax.map(one, spins, batch_size=chunk)


def _of_matrix(
    matrix: Matrix, log: Array, sign: Array | None, phase: Array | None
) -> tuple[Array, Array | None]:
    """Return the local energies of a full sum."""
    here = (log, sign, phase)
    there = [None if x is None else x[matrix.index] for x in here]
    return _ratios(matrix.elements, here, there)


def _ratios(elements: Array, here: Any, there: Any) -> tuple[Array, Array | None]:
    """Return Σ_k H_ik ψ_k/ψ_i, real and imaginary parts; without phases the real part only."""
    return _summed(elements, jnp.exp(there[0] - here[0][:, None]), here, there)


def _summed(elements: Array, ratio: Array, here: Any, there: Any) -> tuple[Array, Array | None]:
    """Return the same for given moduli of ψ_k/ψ_i, or of ψ_k alone, which no ψ_i divides."""
    if here[1] is not None:
        ratio = ratio * (there[1] * here[1][:, None]).astype(ratio.dtype)
    real = jnp.real(elements).astype(ratio.dtype) * ratio
    if here[2] is None:
        # The imaginary part of H is antisymmetric: it has no energy in a real wave function.
        return jnp.sum(real, axis=1), None
    angle = there[2] - here[2][:, None]
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    imaginary = jnp.imag(elements).astype(ratio.dtype) * ratio
    return (
        jnp.sum(real * cos - imaginary * sin, axis=1),
        jnp.sum(real * sin + imaginary * cos, axis=1),
    )


def _parts(outputs: Any) -> tuple[Array, Array | None, Array | None]:
    """Return log-moduli, signs and phases of the outputs."""
    if isinstance(outputs, Signed):
        return outputs.log, outputs.sign, None
    if outputs.ndim == 2:
        return outputs[:, 0], None, outputs[:, 1]
    return outputs, None, None


class Estimate(NamedTuple):
    """An energy and how well it is known."""

    energy: Scalar
    variance: Scalar
    """The variance of the local energies, zero in an eigenstate."""
    error: Scalar
    """The standard error of the energy from independent samples; zero of a full sum."""


def estimate(energy: Composite, params: Params, batch: tuple[Any, Any]) -> Estimate:
    """The energy on a batch, the variance of the local energies, and the standard error.

    **Arguments:**

    - `energy`: a problem made by `vmc.problem`.
    - `params`: the parameters of the wave function.
    - `batch`: `full_sum(energy)`, or what `Metropolis.draw` returns at the same parameters.
    """
    parts_of("estimate", energy)
    log, sign, phase = _parts(energy.outputs(params, batch[0]))
    p, targets = probabilities(log), batch[1]
    whole = isinstance(targets, Matrix)
    root = jnp.exp(jax.nn.log_softmax(2 * log) / 2)
    if whole:
        # √p times the local energies: these overflow where a probability underflows, or is zero.
        there = [None if x is None else x[targets.index] for x in (log, sign, phase)]
        moduli = root[targets.index]
        scaled, turned = _summed(targets.elements, moduli, (log, sign, phase), there)
        mean = jnp.sum(root * scaled)
        square = (scaled - mean * root) ** 2
    else:
        real, imaginary = targets
        mean = jnp.sum(p * real)
        # Where p underflows the square of a local energy overflows: the two roots are multiplied.
        square = (root * (real - mean)) ** 2
        turned = None if imaginary is None else root * imaginary
    square = square if turned is None else square + turned**2
    variance = jnp.sum(square)
    error = jnp.zeros_like(mean) if whole else jnp.sqrt(jnp.sum(p * square))
    return Estimate(mean, variance, error)
