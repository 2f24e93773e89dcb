r"""Theorem 2. The natural parameter gradient is reparametrisation invariant on the model: for
\(\psi = \varphi \circ f\) with a diffeomorphism \(f\), \(\xi = f(\theta)\),

\[ \mathrm{d}\psi_\theta\,\tilde\nabla_\theta L = \mathrm{d}\varphi_\xi\,\tilde\nabla_\xi L. \]

On the parameters it is not: `parameter_space.py`.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

import pullback as pb

from .._claim import Budget, Claim, Measured, Role, Verdict, at_least, at_most
from .._numbers import distance, generator
from ._curved import INNER, METRIC, loss, matrix, outer, phi, point
from ._diagrams import draw_two, two_parametrisations

TRIALS = 8


class Diffeomorphism(eqx.Module):
    r"""\(f(\theta) = A(t + b\sin t) + s\), \(t = B\theta\): affine for \(b = 0\), a diffeomorphism
    for every \(|b| < 1\).
    """

    a: Float[Array, "d d"]
    b: Float[Array, "d d"]
    bend: Float[Array, ""]
    shift: Float[Array, " d"]

    def __call__(self, theta: Float[Array, " d"]) -> Float[Array, " d"]:
        """f(θ)."""
        t = self.b @ theta
        return self.a @ (t + self.bend * jnp.sin(t)) + self.shift


def diffeomorphism(
    rng: np.random.Generator, theta: np.ndarray, xi: np.ndarray, bend: float
) -> Diffeomorphism:
    """One at random that sends θ to ξ."""
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
        """φ(f(θ))."""
        return self.phi(self.f(theta))


def least(f_inverse: np.ndarray, g: np.ndarray, covector: np.ndarray, rank: int) -> np.ndarray:
    """The solution y of G y = covector of least ‖F⁻¹y‖: any solution, and the best correction in
    the kernel of G.
    """
    any_solution = np.linalg.lstsq(g, covector, rcond=1e-12)[0]
    kernel = np.linalg.eigh(g)[1][:, : len(g) - rank]
    return (
        any_solution
        - kernel @ np.linalg.lstsq(f_inverse @ kernel, f_inverse @ any_solution, rcond=None)[0]
    )


def compare(theta: Array, f: Diffeomorphism) -> dict[str, float]:
    """The natural gradients of φ and φ ∘ f, on the model and on the parameters."""
    xi = f(theta)
    problem = pb.Composite(phi, loss=loss, metric=METRIC)
    twin = pb.Composite(Composition(phi, f), loss=loss, metric=METRIC)
    old = pb.natural_gradient(problem, xi)
    new = pb.natural_gradient(twin, theta)
    tangent = np.asarray(jacobian(f, theta))
    back = np.linalg.inv(tangent)
    gauged = pb.natural_gradient(
        problem, xi, inverse=pb.MoorePenrose(gauge=jnp.asarray(back.T @ back))
    )
    mapped = tangent @ np.asarray(new.vector)
    y = np.asarray(old.vector)
    a = np.linalg.cholesky(np.asarray(matrix(phi(xi)))).T @ np.asarray(jacobian(phi, xi))
    return {
        "model": distance(new.pushforward, old.pushforward),
        "parameters": distance(mapped, y),
        "unseen": float(np.linalg.norm(a @ (mapped - y)) / np.linalg.norm(a @ y)),
        "covector": distance(new.covector, tangent.T @ np.asarray(old.covector)),
        "gram": distance(pb.pullback(twin, theta).matrix(), tangent.T @ (a.T @ a) @ tangent),
        "least": distance(least(back, a.T @ a, np.asarray(old.covector), INNER), mapped),
        "own": distance(least(np.eye(len(y)), a.T @ a, np.asarray(old.covector), INNER), y),
        "plain": distance(tangent @ np.asarray(new.covector), old.covector),
        "gauge": distance(gauged.vector, mapped),
    }


def proper(theta: Array, f: Diffeomorphism) -> float:
    """How far the two natural gradients are apart on the parameters if the model is not
    overparametrised.
    """
    old = pb.natural_gradient(pb.Composite(outer, loss=loss, metric=METRIC), f(theta))
    new = pb.natural_gradient(pb.Composite(Composition(outer, f), loss=loss, metric=METRIC), theta)
    return distance(np.asarray(jacobian(f, theta)) @ np.asarray(new.vector), old.vector)


jacobian = eqx.filter_jit(lambda f, at: jax.jacfwd(f)(at))


def comparisons(budget: Budget, key: PRNGKeyArray) -> dict[str, list[dict[str, float]]]:
    """Comparisons for affine and for nonlinear changes of parameters."""
    rng = generator(key)
    found = {}
    for kind, bend in (("affine", 0.0), ("nonlinear", 0.8)):
        found[kind] = [
            compare(*change(rng, point(rng), bend)) for _ in range(TRIALS * budget.seeds)
        ]
    return found


def change(rng: np.random.Generator, xi: np.ndarray, bend: float) -> tuple[Array, Diffeomorphism]:
    """New parameters θ and a diffeomorphism that sends them to ξ."""
    theta = rng.standard_normal(len(xi))
    return jnp.asarray(theta), diffeomorphism(rng, theta, xi, bend)


def worst(found: list[dict[str, float]], key: str) -> float:
    """The largest of some discrepancies."""
    return max(one[key] for one in found)


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """Affine and nonlinear diffeomorphisms."""
    found = comparisons(budget, key)
    both = found["affine"] + found["nonlinear"]
    count = len(found["affine"])
    return Measured(
        (
            at_most(
                f"pushforwards, {count} nonlinear changes of parameters: largest difference",
                worst(found["nonlinear"], "model"),
                1e-11,
            ),
            at_most(
                f"pushforwards, {count} affine changes of parameters",
                worst(found["affine"], "model"),
                1e-11,
            ),
            at_least(
                "the parameter vectors differ by, smallest",
                min(one["parameters"] for one in both),
                0.02,
                Role.CONTROL,
            ),
            at_least(
                "the plain gradient as a vector differs by, smallest",
                min(one["plain"] for one in both),
                0.02,
                Role.CONTROL,
            ),
        ),
        two_parametrisations(),
    )


CLAIM = Claim(
    name="theorem-2",
    source="invariance",
    place="Theorem 2 (Definition 5), (19), and Figure 2",
    quotation="The natural parameter gradient is reparametrisation invariant.",
    statement=(
        "The natural parameter gradient is reparametrisation invariant on the model: changing "
        "the parameters by a diffeomorphism does not change how the outputs move, "
        "overparametrised or not."
    ),
    verdict=Verdict.HOLDS,
    run=run,
    draw=draw_two,
)
