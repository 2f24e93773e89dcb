"""Holomorphic models, declared: the same numbers by half the work; a wrong one raises."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from complex_models import complex_normal, flat, normal

import pullback as pb

X = normal(5, 4, seed=1)
Y = complex_normal(5, seed=2)
PARAMS = {
    "w": complex_normal(4, 6, seed=3) / 4,
    "b": complex_normal(6, seed=4) / 4,
    "a": complex_normal(4, seed=5),
}
WEIGHTS = jnp.asarray([0.2, 0.0, 0.5, 1.0, 0.3])


def rbm(p, x):
    """log ψ of a restricted Boltzmann machine."""
    x = x.astype(complex)
    return x @ p["a"] + jnp.sum(jnp.log(jnp.cosh(x @ p["w"] + p["b"][None])), axis=1)


def conjugated(p, x):
    return rbm(jax.tree.map(jnp.conj, p), x) + rbm(p, x)


def loss(z, y):
    return jnp.abs(z - y) ** 2 / 2


def problem(model=rbm, metric=None, measure=None, holomorphic=True):
    return pb.Composite(model, loss, metric, measure, holomorphic=holomorphic)


PROBLEMS = {
    "euclidean": {},
    "weighted": {"measure": pb.Weights(WEIGHTS)},
    "parts with scales": {"metric": pb.metric.Gaussian(jnp.asarray([0.5, 2.0]))},
    "correlated parts": {"metric": pb.metric.Gaussian(jnp.asarray([[2.0, 0.5], [0.5, 1.0]]))},
}
SOLVERS = {
    "dual": pb.solver.Dual(),
    "dense dual": pb.solver.Dual(structured=False),
    "primal": pb.solver.Primal(),
    "svd": pb.solver.SVD(),
    "krylov": pb.solver.Krylov(),
}


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_the_same_numbers(name, solver):
    for inverse in (pb.Tikhonov(0.1), pb.MoorePenrose()):
        found = [
            pb.natural_gradient(
                problem(**PROBLEMS[name], holomorphic=declared), PARAMS, (X, Y),
                inverse=inverse, solver=SOLVERS[solver],
            ).vector
            for declared in (True, False)
        ]  # fmt: skip
        np.testing.assert_allclose(flat(found[0]), flat(found[1]), atol=1e-11)


def test_the_dense_kernel_and_gauges():
    j = np.asarray(jax.jacfwd(lambda p: rbm(p, X), holomorphic=True)(PARAMS)["w"]).reshape(5, -1)
    only = {k: v for k, v in PARAMS.items() if k == "w"}
    rest = {k: v for k, v in PARAMS.items() if k != "w"}
    one = pb.Composite(lambda p, x: rbm(rest | p, x), loss, measure=pb.Sum(), holomorphic=True)
    k = np.asarray(pb.pullback(one, only, (X,)).kernel())
    expected = j @ j.conj().T
    np.testing.assert_allclose(k[::2, ::2], expected.real, atol=1e-12)
    np.testing.assert_allclose(k[1::2, ::2], expected.imag, atol=1e-12)
    inverse = pb.MoorePenrose(gauge={"w": 2.0, "b": 1.0, "a": 0.5 + 3j})
    found = [
        pb.natural_gradient(p, PARAMS, (X, Y), inverse=inverse, solver=pb.solver.Dual()).vector
        for p in (problem(), problem(holomorphic=False))
    ]
    np.testing.assert_allclose(flat(found[0]), flat(found[1]), atol=1e-11)


def test_factors_without_rows():
    params = {"w": complex_normal(4, 16, seed=6) / 4, "v": complex_normal(16, 3, seed=7)}
    model = lambda p, x: jnp.tanh(x.astype(complex) @ p["w"]) @ p["v"]
    square = lambda z, y: jnp.sum(jnp.abs(z - y) ** 2, axis=1) / 2
    y = complex_normal(5, 3, seed=8)
    found = [
        pb.natural_gradient(
            pb.Composite(model, square, holomorphic=declared), params, (X, y),
            inverse=pb.Tikhonov(0.1), solver=pb.solver.Dual(),
        ).vector
        for declared in (True, False)
    ]  # fmt: skip
    np.testing.assert_allclose(flat(found[0]), flat(found[1]), atol=1e-12)


def test_training():
    opts = [pb.NaturalGradientDescent(problem(holomorphic=h)) for h in (True, False)]
    found = [pb.fit(opt, PARAMS, (X, Y), steps=3, progress=False).params for opt in opts]
    np.testing.assert_allclose(flat(found[0]), flat(found[1]), atol=1e-9)


@pytest.mark.parametrize(
    "model",
    [conjugated, lambda p, x: rbm(p, x) * (1 + 1e-3 * jnp.abs(p["a"][0]).astype(complex))],
)
def test_a_model_that_is_not_holomorphic_raises(model):
    words = r"The model is not holomorphic.*Leave `holomorphic=True` out"
    wrong = problem(model)
    with pytest.raises(ValueError, match=words):
        pb.natural_gradient(wrong, PARAMS, (X, Y))
    with pytest.raises(ValueError, match=words):
        pb.pullback(wrong, PARAMS, (X,))
    opt = pb.NaturalGradientDescent(wrong, step=0.1)
    moved, _, record = opt.step(PARAMS, opt.init(PARAMS), (X, Y))
    assert record.result == pb.RESULTS.not_holomorphic and not bool(record.accepted)
    assert np.array_equal(moved["w"], PARAMS["w"])
    go = jax.jit(lambda p: pb.natural_gradient(wrong, p, (X, Y), throw=False).result)
    assert bool(go(PARAMS) == pb.RESULTS.not_holomorphic)


def test_real_parameters_and_outputs_are_no_holomorphic_model():
    real = PARAMS | {"a": normal(4)}
    cast = lambda p, x: rbm(p | {"a": p["a"].astype(complex)}, x)
    with pytest.raises(ValueError, match=r"\['a'\] \(float64\) is real\. Convert it"):
        pb.natural_gradient(problem(cast), real, (X, Y))
    with pytest.raises(ValueError, match="all outputs must be complex"):
        pb.natural_gradient(problem(lambda p, x: jnp.abs(rbm(p, x))), PARAMS, (X, Y))
    assert "holomorphic=True" in repr(problem())
