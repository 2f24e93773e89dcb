r"""A natural gradient of a product of matrices, \(\beta = W_1\cdots W_L\) with \(F(\beta) = I\), as
the source computes it, B.4: each factor answers for one part in \(L\) of the gradient \(G\), \(A_l
X_l B_l = G/L\) with \(A_l = W_1\cdots W_{l-1}\), \(B_l = W_{l+1}\cdots W_L\).

**Corrected**, three times.

- The solution is \(X_l = \tfrac1L A_l^+ G B_l^+\). Eq. (51) prints \(\tfrac1L B_l^{\top+} G
  A_l^+\), the main text \(\tfrac1L B_l^{\top+}GA_l^\top\): the vec of the first term of (51) is
  right, its translation into matrices is not.
- (48) asks every \(J_l = B_l^\top\otimes A_l\) to be onto. Through a bottleneck, or with one
  singular factor among three, it is not, and then the split formula is no natural gradient: its
  motion is neither \(G\), though \(J\) may be onto as a whole, nor the projection of \(G\).
- Where it is one, it is not the one of least norm. \(J^+\mathrm{vec}\,G\) is \(X_l = A_l^\top M
  B_l^\top\), \(M\) from \(\sum_l A_lA_l^\top M B_l^\top B_l = G\) (for two factors a Sylvester
  equation); the second order error of a finite step is larger by about the square of the ratio of
  the norms.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

import pullback as pb
from pullback.linear import MatrixProduct

from .._claim import Budget, Claim, Measured, Role, Verdict, at_least, at_most, equals
from .._numbers import distance, generator
from ._products import gaussian, jacobian, motion, product, sides


def split(factors: list[np.ndarray], g: np.ndarray) -> list[np.ndarray]:
    """(1/L) A⁺ G B⁺, by the library: G is the distance of the product from its target."""
    own = [jnp.asarray(w) for w in factors]
    updates = MatrixProduct(len(own)).split(own, product(own) - jnp.asarray(g))
    return [np.asarray(x) for x in updates]


def printed(factors: list[np.ndarray], g: np.ndarray) -> list[np.ndarray]:
    """Eq. (51): (1/L) Bᵀ⁺ G A⁺."""
    return [np.linalg.pinv(b.T) @ g @ np.linalg.pinv(a) / len(factors) for a, b in sides(factors)]


def main_text(factors: list[np.ndarray], g: np.ndarray) -> list[np.ndarray]:
    """Section 4: (1/L) Bᵀ⁺ G Aᵀ."""
    return [np.linalg.pinv(b.T) @ g @ a.T / len(factors) for a, b in sides(factors)]


def library(factors: list[np.ndarray], g: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """The Moore-Penrose natural gradient of ⟨G, β⟩ and the motion of the product."""
    problem = pb.Composite(product, loss=eqx.Partial(_inner, jnp.asarray(g)))
    ng = pb.natural_gradient(problem, [jnp.asarray(w) for w in factors])
    return [np.asarray(v) for v in ng.vector], np.asarray(ng.pushforward)


def _inner(g: Array, beta: Array) -> Array:
    return jnp.sum(g * beta)


def _norm(updates: list[np.ndarray]) -> float:
    return float(np.sqrt(sum(np.sum(x**2) for x in updates)))


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """Two, three and four square factors, a bottleneck, and a singular factor."""
    rng = generator(key)
    size = 8 if budget.full else 5
    rows = []
    wrong = []
    main = []
    right = []
    exact = []
    longer = []
    for depth in (2, 3, 4):
        factors = gaussian(rng, [size] * (depth + 1))
        g = rng.standard_normal((size, size))
        wrong.append(distance(motion(factors, printed(factors, g)), g))
        main.append(distance(motion(factors, main_text(factors, g)), g))
        right.append(distance(motion(factors, split(factors, g)), g))
        least, moved = library(factors, g)
        dense = np.linalg.pinv(jacobian(factors)) @ g.ravel()
        exact += [distance(moved, g), distance(np.concatenate([x.ravel() for x in least]), dense)]
        longer.append(_norm(split(factors, g)) / _norm(least))
    rows += [
        at_most(
            "(51): motion of the product against G, L = 2, 3, 4: smallest error", min(wrong), 1e-6
        ),
        at_most("main text: the same", min(main), 1e-6),
        at_most("A⁺GB⁺/L: largest error", max(right), 1e-8, Role.CORRECTED),
        at_most(
            "the library, Moore-Penrose: motion, and vector against pinv(J) in NumPy",
            max(exact),
            1e-8,
            Role.CORRECTED,
        ),
        at_least("A⁺GB⁺/L: its norm over the least, smallest", min(longer), 1.05, Role.CORRECTED),
    ]
    rows += _not_onto(rng, "bottleneck 5 x 3 x 7", gaussian(rng, [5, 3, 7]))
    factors = gaussian(rng, [5, 5, 5, 5])
    left, values, rest = np.linalg.svd(factors[1])
    factors[1] = left @ np.diag([*values[:-1], 0.0]) @ rest
    rows.append(
        equals(
            "singular middle factor: rank of J, of 25",
            np.linalg.matrix_rank(jacobian(factors)),
            25,
            Role.CONTROL,
        )
    )
    rows += _not_onto(rng, "singular middle factor", factors)
    return Measured(tuple(rows))


def _not_onto(rng: np.random.Generator, name: str, factors: list[np.ndarray]) -> list:
    """The projection of G against the motions; (48) as stated with A⁺GB⁺/L, its right reading."""
    g = rng.standard_normal((factors[0].shape[0], factors[-1].shape[1]))
    j = jacobian(factors)
    projected = (j @ (np.linalg.pinv(j, rcond=1e-10) @ g.ravel())).reshape(g.shape)
    return [
        at_most(
            f"{name}: (48) solved by A⁺GB⁺/L, motion against the projection of G",
            distance(motion(factors, split(factors, g)), projected),
            1e-6,
        ),
        at_most(
            f"{name}: the library",
            distance(library(factors, g)[1], projected),
            1e-8,
            Role.CORRECTED,
        ),
    ]


CLAIM = Claim(
    name="depth-factorisation",
    source="depth",
    place="section 4 and appendix B.4, eqs. (41) to (51)",
    quotation="Exploiting the structure of the Jacobian in the deep matrix product parametrization",
    statement=(
        "A natural gradient of a product of matrices is (1/L) Bᵀ⁺ G A⁺ (main text: (1/L) Bᵀ⁺ G "
        "Aᵀ) for each factor, A and B the products before and after it."
    ),
    verdict=Verdict.CORRECTED,
    stands=True,
    run=run,
    correction=(
        "It is (1/L) A⁺ G B⁺, if every A and B is invertible; otherwise it is not a natural "
        "gradient. It is not of least norm: that one needs a Sylvester equation."
    ),
    key_number="A⁺GB⁺/L: largest error",
)
