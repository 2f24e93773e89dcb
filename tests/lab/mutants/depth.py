"""Mutants of the claims on Kerekes, Mészáros, Huszár."""

import jax.numpy as jnp
import numpy as np

import pullback as pb
from pullback_lab.papers.depth import counterexample, stability
from pullback_lab.papers.depth._figure_factors import Completed, product

from ._tools import DAMPED, EUCLIDEAN, PAPERS, Mutant, called, instead, made, scaled


def ridge(x, y, rcond=None):
    """Least squares, damped."""
    return (np.linalg.solve(x.T @ x + 0.1 * np.eye(x.shape[1]), x.T @ y),)


def wrong_root(original):
    """The root of the Bernoulli metric, its logarithm off by s/10000."""

    def root(self, z):
        right = original(self, z)
        return type(right)(right.log_scale + 1e-4 * jnp.ravel(z), right.like)

    return root


def along_the_gradient(self, beta, x, y, t, **options):
    """A flow with the Fisher matrix left out."""
    return beta + t * x.T @ y


def in_one_factor(flow):
    """The Euclidean flow in the product itself, whatever the number of factors."""
    return lambda task, factors, most: flow(task, [product(factors)], most)


def in_one_layer(flow):
    """The Euclidean flow of the coefficients themselves, whatever the number of layers."""
    return lambda task, weights, **options: flow(task, weights.prod(axis=0)[None], **options)


TRUTH = lambda formula, task, factors, step: Completed(task.truth, 0.0, 1)


def once(descend):
    """Descent that completes the matrix from one start: the first, also if it is moved a little."""
    runs = []

    def found(formula, task, factors, step):
        runs.append((formula, product(factors), step))
        same = all(map(np.allclose, runs[0][1:], runs[-1][1:])) and formula == runs[0][0]
        return (TRUTH if same else descend)(formula, task, factors, step)

    return found


NO_POPULATION = {
    "the population Fisher is left out": instead(
        "pullback.linear.Logistic.population_natural_gradient",
        lambda self, beta, x, y, inputs=None: self.gradient(beta, x, y),
    )
}
OTHER_WEIGHTS = {
    "the weights of the program are those of another start": made(
        "pullback.linear.Logistic.limit_direction",
        lambda f: lambda self, x, y, beta=None: f(self, x, y, jnp.full(x.shape[1], 3.0)),
    )
}

DEPTH: dict[str, dict[str, Mutant]] = {
    "depth-lemma-1": {"the root is wrong": made("pullback.metric.Bernoulli.root", wrong_root)},
    "depth-lemma-2": {
        "the metric of the library is 1 % too large": scaled("pullback.metric.Gaussian.apply")
    },
    "depth-theorem-1": {"the flow is 1 % too far": scaled(PAPERS + "depth.theorem_1.natural_flow")},
    "depth-theorem-2": {"the flow is 1 % too far": scaled(PAPERS + "depth.theorem_2.natural_flow")},
    "depth-theorem-3": {
        "the logits are 1 % too large": scaled(PAPERS + "depth.theorem_3.interpolating_logits")
    },
    "depth-theorem-4": {
        "the logits are 1 % too large": scaled(PAPERS + "depth.theorem_4.interpolating_logits")
    },
    "depth-invariance": DAMPED,
    "depth-completion": DAMPED,
    "depth-normalisation": {
        "the flow is 1 % too far": scaled(PAPERS + "depth.normalisation.natural_flow")
    },
    "depth-ols": {"least squares are damped": instead("numpy.linalg.lstsq", ridge)},
    "depth-ols-direction": {
        "the flow is shifted": scaled(PAPERS + "depth.ols_direction.natural_flow", 1.0, 10.0)
    },
    "depth-parametrisations": {
        "the Fisher matrix is 1 % too large": scaled("pullback.PullbackMetric.matrix")
    },
    "depth-train-fisher": {
        "the mask is dropped": instead("pullback.metric.Masked", lambda metric, mask: metric)
    },
    "depth-test-fisher": {
        "the Fisher matrix is that of the training inputs": called(
            "pullback.natural_gradient", metric_batch=lambda _: None
        )
    }
    | NO_POPULATION,
    "depth-stochastic": {
        "a run keeps the batch of its first step": made(
            PAPERS + "depth._batches.drawn", lambda f: lambda key, step, *rest: f(key, 0, *rest)
        ),
        "the Fisher matrix is that of the batch": called(
            "pullback.natural_gradient", metric_batch=lambda _: None
        ),
    },
    "depth-wasserstein": {
        "all metrics are Euclidean": instead(
            PAPERS + "depth.wasserstein.log_weights",
            lambda u: dict.fromkeys(("Fisher", "Euclidean", "Wasserstein"), np.zeros_like(u)),
        )
    }
    | OTHER_WEIGHTS,
    "depth-initialisation": {
        "the effective rank is constant": instead(
            PAPERS + "depth.initialisation.effective_rank", lambda matrix: 5.0
        )
    },
    "depth-proliferation": {
        "a sample is never a support vector": instead(
            PAPERS + "depth.proliferation.coincide", lambda x, y: False
        ),
        "the natural flow goes along the gradient at zero": instead(
            "pullback.linear.Logistic.flow", along_the_gradient
        ),
    },
    "depth-diagonal-network": DAMPED,
    "depth-factorisation": {
        "the split formula is 1 % too large": scaled(PAPERS + "depth.factorisation.split")
    },
    "depth-singular-fisher": EUCLIDEAN,
    "depth-stability": {
        "the library forms the Fisher matrix": lambda patch: patch.setitem(
            stability.METHODS, "the library", stability.shifted_down
        )
    },
    "depth-counterexample": {
        "the printed argmins are taken": instead(
            PAPERS + "depth.counterexample.RIGHT", counterexample.PRINTED
        )
    },
    "depth-typos": {"the Jacobian is 1 % too large": scaled(PAPERS + "depth.typos.jacobian")},
    "depth-figure-1": EUCLIDEAN,
    "depth-figure-2": {
        "the l1 margin is the l2 margin": instead(
            PAPERS + "depth.figure_2.l1_margin", pb.linear.l2_margin
        )
    }
    | OTHER_WEIGHTS,
    "depth-figure-3": {"the natural NTK is 1 % too large": scaled("pullback.natural_ntk")},
    "depth-figure-4": NO_POPULATION
    | {
        "Euclidean flow in one layer": made(
            PAPERS + "depth._figure_sparse.euclidean_flow", in_one_layer
        )
    },
    "depth-chance": {
        "the flow is shifted": scaled(PAPERS + "depth.chance.natural_flow", 1.0, 0.1),
        "the start is forgotten": made(
            PAPERS + "depth.chance.from_start",
            lambda f: lambda task, start, t: f(task, 0 * start, t),
        ),
    },
    "depth-structure": {
        "the flow is the same in all coefficients": instead(
            PAPERS + "depth.structure.natural_flow", lambda task, t: np.ones_like(task.truth)
        )
    },
    "depth-figure-5": {
        "descent by the split formula": made(
            PAPERS + "depth.figure_5.descend", lambda f: lambda _, *rest: f("split", *rest)
        ),
        "Euclidean flow in one factor": made(
            PAPERS + "depth.figure_5.euclidean_flow", in_one_factor
        ),
    },
    "depth-grid-search": {
        "descent finds the truth": instead(PAPERS + "depth.grid_search.descend", TRUTH),
        "descent from one start finds the truth": made(PAPERS + "depth.grid_search.descend", once),
    },
    "depth-figure-6": {
        "the natural flow goes along the gradient at zero": instead(
            "pullback.linear.Logistic.flow", along_the_gradient
        )
    },
}
