r"""Theorem 2. The natural parameter gradient is reparametrisation invariant on the model: for \(\psi = \varphi \circ f\) with a
diffeomorphism \(f\), \(\xi = f(\theta)\),

\[ \mathrm{d}\psi_\theta\,\tilde\nabla_\theta L = \mathrm{d}\varphi_\xi\,\tilde\nabla_\xi L. \]

On the parameters it is not (section 3.2): with \(F = \partial f/\partial\theta\) the vectors \(y_\Theta = F\,\tilde\nabla_\theta L\) and
\(y_\Xi = \tilde\nabla_\xi L\) differ, by a vector that the metric does not see. \(y_\Theta\) is the solution of \(G(\xi)y = \nabla_\xi L\)
of least \(\|F^{-1}y\|\), so that (Remark 2) another parametrisation is another inner product on the old one, here the gauge
\(W = F^{-\top}F^{-1}\). (The paper writes \(F\) for our \(F^\top\).)
"""

from collections.abc import Callable, Iterator

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import pullback as pb

from .._example import Example, Row, at_least, at_most, distance
from ._curved import INNER, METRIC, loss, matrix, outer, phi, point

TRIALS = 8


class Diffeomorphism(eqx.Module):
    r"""\(f(\theta) = A(t + b\sin t) + s\), \(t = B\theta\): affine for \(b = 0\), a diffeomorphism for every \(|b| < 1\)."""

    a: Float[Array, "d d"]
    b: Float[Array, "d d"]
    bend: Float[Array, ""]
    shift: Float[Array, " d"]

    def __call__(self, theta: Float[Array, " d"]) -> Float[Array, " d"]:
        """f(θ).

        **Arguments:**

        - `theta`: the new parameters.
        """
        t = self.b @ theta
        return self.a @ (t + self.bend * jnp.sin(t)) + self.shift


def diffeomorphism(rng: np.random.Generator, theta: np.ndarray, xi: np.ndarray, bend: float) -> Diffeomorphism:
    """One at random that sends θ to ξ.

    **Arguments:**

    - `rng`: its source.
    - `theta`, `xi`: what is sent where.
    - `bend`: 0 for an affine one.
    """
    size = len(theta)

    def factor():
        left, right = (np.linalg.qr(rng.standard_normal((size, size)))[0] for _ in range(2))
        return jnp.asarray(left @ np.diag(rng.uniform(0.5, 1.5, size)) @ right)

    f = Diffeomorphism(factor(), factor(), jnp.asarray(bend), jnp.zeros(size))
    return eqx.tree_at(lambda f: f.shift, f, jnp.asarray(xi) - f(jnp.asarray(theta)))


class Composition(eqx.Module):
    """The model ψ = φ ∘ f. The diffeomorphism is data, so that one compilation serves all."""

    phi: Callable
    f: Diffeomorphism

    def __call__(self, theta: Float[Array, " d"]) -> Array:
        """φ(f(θ)).

        **Arguments:**

        - `theta`: the new parameters.
        """
        return self.phi(self.f(theta))


def least(f_inverse: np.ndarray, g: np.ndarray, covector: np.ndarray, rank: int) -> np.ndarray:
    """The solution y of G y = covector of least ‖F⁻¹y‖: any solution, and the best correction in the kernel of G.

    **Arguments:**

    - `f_inverse`: F⁻¹.
    - `g`: the singular matrix G.
    - `covector`: in the range of G.
    - `rank`: the rank of G.
    """
    any_solution = np.linalg.lstsq(g, covector, rcond=1e-12)[0]
    kernel = np.linalg.eigh(g)[1][:, : len(g) - rank]
    return any_solution - kernel @ np.linalg.lstsq(f_inverse @ kernel, f_inverse @ any_solution, rcond=None)[0]


def compare(theta: Array, f: Diffeomorphism) -> dict[str, float]:
    """The natural gradients of φ and φ ∘ f, on the model and on the parameters.

    **Arguments:**

    - `theta`: the new parameters; the old ones are f(θ).
    - `f`: the change of parameters.
    """
    xi = f(theta)
    problem = pb.Composite(phi, loss=loss, metric=METRIC)
    old, new = (
        pb.natural_gradient(problem, xi),
        pb.natural_gradient(pb.Composite(Composition(phi, f), loss=loss, metric=METRIC), theta),
    )
    tangent = np.asarray(_jacobian(f, theta))
    back = np.linalg.inv(tangent)
    gauged = pb.natural_gradient(problem, xi, inverse=pb.MoorePenrose(gauge=jnp.asarray(back.T @ back)))
    mapped, y = tangent @ np.asarray(new.vector), np.asarray(old.vector)
    a = np.linalg.cholesky(np.asarray(matrix(phi(xi)))).T @ np.asarray(_jacobian(phi, xi))
    return {
        "model": distance(new.pushforward, old.pushforward),
        "parameters": distance(mapped, y),
        "unseen": float(np.linalg.norm(a @ (mapped - y)) / np.linalg.norm(a @ y)),
        "covector": distance(new.covector, tangent.T @ np.asarray(old.covector)),
        "least": distance(least(back, a.T @ a, np.asarray(old.covector), INNER), mapped),
        "gauge": distance(gauged.vector, mapped),
    }


def proper(theta: Array, f: Diffeomorphism) -> float:
    """How far the two natural gradients are apart on the parameters if the model is not overparametrised.

    **Arguments:**

    - `theta`: the new parameters; the old ones are f(θ).
    - `f`: the change of parameters.
    """
    old = pb.natural_gradient(pb.Composite(outer, loss=loss, metric=METRIC), f(theta))
    new = pb.natural_gradient(pb.Composite(Composition(outer, f), loss=loss, metric=METRIC), theta)
    return distance(np.asarray(_jacobian(f, theta)) @ np.asarray(new.vector), old.vector)


_jacobian = eqx.filter_jit(lambda f, at: jax.jacfwd(f)(at))


def measure() -> Iterator[Row]:
    """Affine and nonlinear diffeomorphisms; then a model that is not overparametrised."""
    rng, found = np.random.default_rng(3), {}
    for kind, bend in (("affine", 0.0), ("nonlinear", 0.8)):
        found[kind] = [compare(*_change(rng, point(rng), bend)) for _ in range(TRIALS)]
    both = found["affine"] + found["nonlinear"]

    yield at_most(
        f"pushforwards, {TRIALS} affine changes of parameters: largest difference", _worst(found["affine"], "model"), 1e-11
    )
    yield at_most(f"pushforwards, {TRIALS} nonlinear changes of parameters", _worst(found["nonlinear"], "model"), 1e-11)
    yield at_least("on the parameters the vectors y_Θ and y_Ξ differ by, smallest", min(one["parameters"] for one in both), 0.02)
    yield at_most("what the metric sees of that difference, (39)", _worst(both, "unseen"), 1e-11)
    yield at_most("covectors pull back: ∇_θ L = Fᵀ ∇_ξ L, (27)", _worst(both, "covector"), 1e-12)
    yield at_most("y_Θ is the solution of least ‖F⁻¹y‖, (33)", _worst(both, "least"), 1e-10)
    yield at_most("Remark 2: the gauge F⁻ᵀF⁻¹ on the old parameters gives y_Θ", _worst(both, "gauge"), 1e-10)
    yield at_most(
        "not overparametrised: the vectors agree on the parameters too",
        proper(*_change(rng, rng.standard_normal(INNER), 0.8)),
        1e-11,
    )


def _change(rng: np.random.Generator, xi: np.ndarray, bend: float) -> tuple[Array, Diffeomorphism]:
    theta = rng.standard_normal(len(xi))
    return jnp.asarray(theta), diffeomorphism(rng, theta, xi, bend)


def _worst(comparisons: list[dict[str, float]], key: str) -> float:
    return max(one[key] for one in comparisons)


EXAMPLE = Example(
    "theorem-2",
    "van Oostrum, Müller, Ay, Theorem 2, section 3.2 and Remark 2",
    "Changing the parameters by a diffeomorphism does not change how the outputs move. The parameter vectors do change, by something the "
    "metric does not see, and exactly as if the inner product on the parameters had been changed instead.",
    measure,
)
