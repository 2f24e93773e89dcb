r"""Section 3.2 and Remark 2. On the parameters the natural parameter gradient is *not* invariant:
with \(F = \partial f/\partial\theta\), \(\xi = f(\theta)\),

\[ y_\Theta = F\,\tilde\nabla_\theta L = \arg\min\{\|F^{-1}y\| : G(\xi)y = \nabla_\xi L\}, \qquad
y_\Xi = \tilde\nabla_\xi L = \arg\min\{\|y\| : G(\xi)y = \nabla_\xi L\} \]

differ if \(G\) is singular, by a vector that the metric does not see. So another parametrisation is
another inner product on the old parameters (Remark 2), here the gauge \(W = F^{-\top}F^{-1}\). If
\(G\) is invertible there is one solution, and the two agree. (The paper writes \(F\) for our
\(F^\top\).)
"""

from jaxtyping import PRNGKeyArray

from .._claim import Budget, Claim, Measured, Role, Verdict, at_least, at_most
from .._numbers import generator
from ._curved import INNER
from .theorem_2 import change, comparisons, proper, worst


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """The equations (26) to (39) on affine and nonlinear changes of parameters."""
    found = comparisons(budget, key)
    both = found["affine"] + found["nonlinear"]
    rng = generator(key)
    return Measured(
        (
            at_least(
                "Definition 6 fails: y_Θ and y_Ξ differ by, smallest",
                min(one["parameters"] for one in both),
                0.02,
            ),
            at_most(
                "what the metric sees of that difference, (37) to (39): largest",
                worst(both, "unseen"),
                1e-11,
            ),
            at_most("covectors pull back, ∇_θ L = Fᵀ ∇_ξ L, (27)", worst(both, "covector"), 1e-12),
            at_most("Gram matrices, G(θ) = FᵀG(ξ)F, (28)", worst(both, "gram"), 1e-12),
            at_most("y_Θ is the solution of least ‖F⁻¹y‖, (33)", worst(both, "least"), 1e-10),
            at_most("y_Ξ is the solution of least ‖y‖, (36)", worst(both, "own"), 1e-10),
            at_most(
                "not overparametrised: y_Θ = y_Ξ",
                proper(*change(rng, rng.standard_normal(INNER), 0.8)),
                1e-11,
            ),
        )
    )


def run_remark(budget: Budget, key: PRNGKeyArray) -> Measured:
    """The gauge that a change of parameters is."""
    found = comparisons(budget, key)
    both = found["affine"] + found["nonlinear"]
    return Measured(
        (
            at_most(
                "the gauge F⁻ᵀF⁻¹ on the old parameters gives y_Θ: largest difference",
                worst(both, "gauge"),
                1e-10,
            ),
            at_least(
                "without it, smallest difference",
                min(one["parameters"] for one in both),
                0.02,
                Role.CONTROL,
            ),
        )
    )


CLAIMS = (
    Claim(
        name="parameter-space",
        source="invariance",
        place="Section 3.2 (Definition 6), (25) to (39)",
        quotation=(
            "for overparametrised systems the natural parameter gradient is not reparametrisation "
            "invariant on the parameter space"
        ),
        statement=(
            "On the parameters the natural gradient of an overparametrised model is not "
            "reparametrisation invariant: both vectors solve G(ξ)y = ∇L, with least norms of "
            "their own, and differ by something that the metric does not see. If the model is "
            "not overparametrised they agree."
        ),
        verdict=Verdict.HOLDS,
        run=run,
    ),
    Claim(
        name="remark-2",
        source="invariance",
        place="Remark 2",
        quotation="defining a different inner product ... for the existing parametrisation",
        statement="To take other parameters is to take another inner product on the old ones.",
        verdict=Verdict.HOLDS,
        run=run_remark,
    ),
)
