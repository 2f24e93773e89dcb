r"""Invariance of the update: to first order for any change of parameters, exactly for affine ones.
With \(\theta = f(\xi)\) affine, \(F = \partial f\),

\[ z(f(\xi - h\,\delta_\xi)) = z(\theta - hF\delta_\xi), \]

so that it is exact if \(F\delta_\xi = \delta_\theta\). If \(G\) is invertible that is so. If the
network is overparametrised, \(F\delta_\xi - \delta_\theta\) is a vector in the kernel of \(G\) at
\(\theta\), which a *finite* step along it does not stay in: the difference on the model is
\(O(h^2)\) again. It vanishes if \(f\) is an isometry, or if the inverse is taken in the gauge
\(F^{-\top}F^{-1}\).
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray

import pullback as pb
from pullback.plot import orders

from .._claim import Budget, Claim, Measured, Role, Verdict, at_least, at_most
from .._numbers import distance, generator

INPUTS = jnp.asarray(np.random.default_rng(4).standard_normal((10, 2)))
TARGETS = jnp.sin(2 * INPUTS[:, 0])
STARTS = 5
"""Random parameters and changes of parameters. At a point where the second-order difference nearly
vanishes the order in a step is not 2 yet, so the median is judged."""
NATURAL = ("natural, 8 weights", "natural, 24 weights")


def network(params: Float[Array, " P"], x: Float[Array, "N 2"]) -> Float[Array, " N"]:
    """A network of one hidden layer, its weights as one vector of length 4k."""
    w = params[: params.size // 2].reshape(2, -1)
    b = params[params.size // 2 : 3 * params.size // 4]
    v = params[3 * params.size // 4 :]
    return jnp.tanh(x @ w + b[None, :]) @ v


PROBLEM = pb.Composite(network, loss=lambda z, y: (z - y) ** 2 / 2)
BATCH = (INPUTS, TARGETS)


def plain(problem: pb.Composite, params: Any, batch: Any) -> Any:
    """The gradient, taken for a vector."""
    loss = problem.loss
    assert loss is not None
    return jax.grad(lambda p: jnp.mean(loss(problem.model(p, batch[0]), batch[1])))(params)


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """Nonlinear changes of parameters of networks with more parameters than samples, and of some
    with fewer.
    """
    rng = generator(key)
    found: dict[str, list[pb.Invariance]] = {}
    for name, hidden, method in (
        ("natural, 8 weights", 2, None),
        ("natural, 24 weights", 6, None),
        ("plain gradient, 8 weights", 2, plain),
    ):
        found[name] = []
        for start in range(STARTS):
            params = jnp.asarray(rng.standard_normal(4 * hidden))
            f = pb.random_reparametrisation(params, jax.random.fold_in(key, start))
            found[name].append(
                pb.check_invariance(
                    PROBLEM, params, BATCH, reparametrisation=f, method=method, counts=()
                )
            )
    off = lambda name, order: np.median([abs(one.order - order) for one in found[name]])
    median = f"median of {STARTS} starts"
    return Measured(
        (
            *(
                at_most(
                    f"{name}: order of the difference of one step, |order - 2|, {median}",
                    off(name, 2),
                    0.1,
                )
                for name in NATURAL
            ),
            *(
                at_most(
                    f"{name}: directions on the model differ by, largest",
                    max(one.model for one in found[name]),
                    1e-9,
                )
                for name in NATURAL
            ),
            at_most(
                f"plain gradient: |order - 1|, {median}",
                off("plain gradient, 8 weights", 1),
                0.1,
                Role.CONTROL,
            ),
        ),
        {name: np.stack([all_[0].steps, all_[0].discrepancies]) for name, all_ in found.items()},
    )


def draw(data: Mapping[str, Any]) -> Any:
    """Difference of one step in two coordinate systems against its size, both logarithmic: slope 2
    for the natural gradient, 1 for the plain one.
    """
    figure, axes = orders({name: (curve[0], curve[1]) for name, curve in data.items()})
    axes.set_title("one step in two coordinate systems")
    return figure


def affine(params: Array, matrix: np.ndarray, gauge: bool) -> tuple[float, float]:
    """The difference of the outputs after a step in θ and one in ξ, θ = Fξ, relative to the step,
    and its order.
    """
    big_f = jnp.asarray(matrix)
    back = np.linalg.inv(matrix)
    inverse = pb.MoorePenrose(gauge=jnp.asarray(back.T @ back)) if gauge else None
    old = pb.natural_gradient(PROBLEM, params, BATCH, inverse=inverse)
    new = pb.natural_gradient(
        pb.Composite(lambda xi, x: network(big_f @ xi, x), loss=PROBLEM.loss),
        jnp.asarray(back) @ params,
        BATCH,
    )
    z = np.asarray(network(params, INPUTS))
    size = 0.05 / np.linalg.norm(np.asarray(old.pushforward))
    gaps = []
    for h in (size, size / 2, size / 4):
        first = network(params - h * old.vector, INPUTS)
        second = network(params - h * (big_f @ new.vector), INPUTS)
        gaps.append(float(np.linalg.norm(np.asarray(second - first))))
    step = float(np.linalg.norm(np.asarray(network(params - size * old.vector, INPUTS)) - z))
    return gaps[0] / step, float(np.log2(gaps[-2] / gaps[-1])) if gaps[-1] > 1e-13 else np.inf


def run_affine(budget: Budget, key: PRNGKeyArray) -> Measured:
    """Linear changes of parameters."""
    rng = generator(key)
    found = {}
    for name, hidden in (("small", 2), ("wide", 6)):
        size = 4 * hidden
        params = jnp.asarray(rng.standard_normal(size))
        left, right = (np.linalg.qr(rng.standard_normal((size, size)))[0] for _ in range(2))
        matrix = left @ np.diag(rng.uniform(0.5, 2.0, size)) @ right
        found[name] = affine(params, matrix, False)
        if name == "wide":
            found["gauge"] = affine(params, matrix, True)
            found["isometry"] = affine(params, left, False)
    return Measured(
        (
            at_most(
                "8 weights, 10 samples: difference of a step, relative to it",
                found["small"][0],
                1e-9,
                Role.KEPT,
            ),
            at_most(
                "24 weights, 10 samples: difference of a step, relative to it",
                found["wide"][0],
                1e-9,
            ),
            at_most(
                "24 weights: its order in the step, |order - 2|",
                abs(found["wide"][1] - 2),
                0.15,
                Role.CORRECTED,
            ),
            at_most(
                "24 weights, in the gauge F⁻ᵀF⁻¹: difference",
                found["gauge"][0],
                1e-9,
                Role.CORRECTED,
            ),
            at_most(
                "24 weights, F orthogonal: difference", found["isometry"][0], 1e-9, Role.CORRECTED
            ),
        )
    )


def run_output(budget: Budget, key: PRNGKeyArray) -> Measured:
    """The Euclidean metric on the outputs, with the hidden weights changed, and with the outputs
    changed.
    """
    params = jnp.asarray(generator(key).standard_normal(24))
    f = pb.random_reparametrisation(params, key)
    hidden = pb.check_invariance(PROBLEM, params, BATCH, reparametrisation=f, counts=())
    gradients = pb.check_invariance(
        PROBLEM, params, BATCH, reparametrisation=f, method=plain, counts=()
    )
    # The same functions, read through another output: z = sinh(s). The metric is Euclidean on s
    # now.
    other = pb.Composite(
        lambda p, x: jnp.arcsinh(network(p, x)), loss=lambda s, y: (jnp.sinh(s) - y) ** 2 / 2
    )
    here = pb.natural_gradient(PROBLEM, params, BATCH)
    there = pb.natural_gradient(other, params, BATCH)
    j = np.asarray(jax.jacfwd(lambda p: network(p, INPUTS))(params))
    flat = lambda ng: j @ np.asarray(ravel_pytree(ng.vector)[0])
    weights = pb.Composite(lambda xi, x: network(jnp.sinh(xi), x), loss=PROBLEM.loss)
    changed = pb.natural_gradient(weights, jnp.arcsinh(params), BATCH)
    return Measured(
        (
            at_most(
                "weights changed, w = sinh(ξ): the motion of the function differs by",
                distance(changed.pushforward, flat(here)),
                1e-9,
            ),
            at_most("by a random map, check_invariance: differs by", hidden.model, 1e-9),
            at_least(
                "by that map the plain gradient differs by",
                gradients.model,
                0.01,
                Role.CONTROL,
            ),
            at_least(
                "outputs changed, z = sinh(s): the motion of the function differs by",
                distance(flat(there), flat(here)),
                0.01,
            ),
        )
    )


CLAIMS = (
    Claim(
        name="first-order-invariance",
        source="lecture",
        place="Invariance to parameterisation",
        quotation=(
            "To the first order, the natural gradient update is invariant to differentiable "
            "reparameterizations of the model."
        ),
        statement=(
            "To first order in the step, the natural gradient update is invariant to "
            "differentiable changes of the parameters of a network."
        ),
        verdict=Verdict.HOLDS,
        run=run,
        keys=19,
        draw=draw,
    ),
    Claim(
        name="affine-invariance",
        source="lecture",
        place="Invariance to parameterisation",
        quotation=(
            "If the coordinate systems are related by an affine transformation, then the "
            "invariance is exact"
        ),
        statement=(
            "If two coordinate systems are related by an affine map, the natural gradient update "
            "is exactly the same in both."
        ),
        verdict=Verdict.CORRECTED,
        stands=True,
        run=run_affine,
        correction=(
            "It is if the metric is invertible. If the network is overparametrised the "
            "Moore-Penrose steps differ by a vector that the metric does not see at the point, "
            "and so by the square of the step; they agree for isometries, and in the gauge of "
            "the map."
        ),
    ),
    Claim(
        name="output-layer",
        source="lecture",
        place="Other natural metrics",
        quotation=(
            "the pullback of a Euclidean metric on outputs is independent of how the network is "
            "parameterized (except for the output layer)"
        ),
        statement=(
            "The pullback of the Euclidean metric on the outputs does not depend on how a "
            "network is parametrised, except for its output."
        ),
        verdict=Verdict.HOLDS,
        run=run_output,
    ),
)
