"""A metric that is not positive semi-definite is named: sample, outputs, eigenvalue, cure."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import normal

import pullback as pb
from pullback.metric import AbstractMatrixMetric, AbstractMetric

X = jnp.asarray([[1.0], [2.0], [3.0], [4.0]])
PARAMS = jnp.ones((1, 3))


def model(params, x):
    return x @ params


def matrix(z):
    """Indefinite where z > 2.5, along the outputs 0 and 2: eigenvalues -1 and 3."""
    good = jnp.eye(3)
    bad = jnp.asarray([[1.0, 0.0, 2.0], [0.0, 1.0, 0.0], [2.0, 0.0, 1.0]])
    return jnp.where(z[0] > 2.5, bad, good)


class Own(AbstractMatrixMetric):
    nonsingular: ClassVar[bool] = True

    def matrix(self, z):
        return matrix(z)


class Bare(AbstractMetric):
    """Only what the contract asks for; the root is a Cholesky factor, NaN where there is none."""

    nonsingular: ClassVar[bool] = True

    def root(self, z):
        return pb.metric.Riemannian(matrix).root(z)

    def apply(self, z, v):
        return matrix(z) @ v

    def sharp(self, z, c):
        return jnp.linalg.solve(matrix(z), c)


def quadratic(z):
    """A potential whose Hessian is `matrix`, off the switch."""
    return z @ jax.lax.stop_gradient(matrix(z)) @ z / 2


METRICS = {
    "Riemannian": pb.metric.Riemannian(matrix),
    "Bregman": pb.metric.Bregman(quadratic),
    "LossHessian": pb.metric.LossHessian(lambda z, y: quadratic(z) + jnp.sum(y * z)),
    "ExponentialFamily": pb.metric.ExponentialFamily(quadratic),
    "Divergence": pb.metric.Divergence(
        lambda u, z: (u - z) @ jax.lax.stop_gradient(matrix(z)) @ (u - z) / 2
    ),
    "Own": Own(),
    "Bare": Bare(),
    "Weighted": pb.metric.Weighted(pb.metric.Riemannian(matrix), 2.0),
    "Sum": pb.metric.Sum((pb.metric.Riemannian(matrix), pb.metric.Euclidean())),
}


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("call", [pb.natural_gradient, pb.pullback], ids=lambda f: f.__name__)
def test_sample_outputs_and_eigenvalue_are_named(name, call):
    loss = lambda z, y: jnp.sum((z - y) ** 2, axis=1) / 2
    problem = pb.Composite(model, loss, METRICS[name])
    values, vectors = np.linalg.eigh(np.asarray([[1.0, 0, 2.0], [0, 1.0, 0], [2.0, 0, 1.0]]))
    assert values[0] == pytest.approx(-1) and abs(vectors[1, 0]) < 1e-12
    with pytest.raises(RuntimeError) as caught:
        call(problem, PARAMS, (X, normal(4, 3)))
    words = str(caught.value)
    assert "Sample 2: " in words and "2 of 4 samples in all" in words
    assert "along outputs [" in words and "[0] (" in words and "[2] (" in words
    assert "[1] (" not in words and "0.71" in words
    assert "its eigenvalues go from -1 to 3" in words


def test_parts_and_leaves_of_the_outputs_have_their_names():
    metric = pb.metric.Product(
        {"a": pb.metric.Euclidean(), "b": pb.metric.Bregman(lambda z: z["u"] ** 2 - z["v"] ** 2)}
    )
    problem = pb.Composite(
        lambda p, x: {"a": x @ p, "b": {"u": x[:, 0] * p[0, 0], "v": x[:, 0] * p[0, 1]}},
        metric=metric,
    )
    with pytest.raises(
        RuntimeError, match=r"Sample 0: Part \['b'\]: .*along outputs \['v'\] \(1\): .*from -2 to 2"
    ):
        pb.pullback(problem, PARAMS, (X,))


def test_a_model_without_data_and_one_number():
    problem = pb.Composite(lambda p: p[0], metric=pb.metric.Bregman(lambda z: -(z**2)))
    with pytest.raises(RuntimeError, match=r"along outputs z \(1\): its eigenvalues go from -2 to"):
        pb.pullback(problem, jnp.ones(1))


def test_many_outputs_are_counted():
    problem = pb.Composite(
        lambda p: p, metric=pb.metric.Riemannian(lambda z: jnp.eye(6) - jnp.ones((6, 6)))
    )
    with pytest.raises(RuntimeError, match=r"and 3 more: its eigenvalues go from -5 to 1"):
        pb.pullback(problem, jnp.ones(6))


def test_inside_jit_nothing_is_raised():
    problem = pb.Composite(model, metric=pb.metric.Riemannian(matrix))
    found = jax.jit(lambda p: pb.pullback(problem, p, (X,)).matrix())(PARAMS)
    assert bool(jnp.all(jnp.isnan(found)))


def test_absent_samples_are_not_blamed():
    weights = pb.Weights(jnp.asarray([1.0, 1.0, 0.0, 0.0]))
    problem = pb.Composite(model, metric=pb.metric.Riemannian(matrix), measure=weights)
    assert bool(jnp.all(jnp.isfinite(pb.pullback(problem, PARAMS, (X,)).matrix())))
