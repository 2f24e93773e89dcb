"""Kernels, examinations, distances, invariance, flows and proximal steps of complex parameters are
those of their pairs.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from complex_models import (
    BATCH,
    COMPLEX,
    PAIRED,
    X,
    Y,
    complex_normal,
    distance,
    flat,
    jacobian,
    loss,
    model,
    residual,
)

import pullback as pb

PROBLEM = pb.Composite(model, loss)


def test_tangent_kernels():
    kernel = pb.ntk(PROBLEM, COMPLEX, BATCH)
    j = jacobian()
    np.testing.assert_allclose(kernel.matrix(), j @ j.T, atol=1e-12)
    c = complex_normal(5, seed=9)
    moved = kernel.product(c)
    assert moved.dtype == complex
    np.testing.assert_allclose(flat(moved), j @ j.T @ flat(jnp.conj(c)), atol=1e-11)
    np.testing.assert_allclose(flat(kernel.column(2)), (j @ j.T)[:, 4], atol=1e-12)
    assert kernel.discrete(c, 1e-6).dtype == complex
    natural = pb.natural_ntk(PROBLEM, COMPLEX, BATCH)
    np.testing.assert_allclose(natural.matrix(), 5 * np.eye(10), atol=1e-9)
    assert "M⁻¹" in natural.reason


def test_examinations_and_distances():
    page = pb.examine(PROBLEM, COMPLEX, BATCH)
    assert (page.parameters, page.outputs, page.rank, page.metric_rank) == (22, 10, 10, 10)
    assert page.proper and page.resolved_rank == 10
    other = COMPLEX | {"b": COMPLEX["b"] + 0.1j}
    found = pb.distance(PROBLEM, COMPLEX, other, BATCH)
    expected = np.mean(np.abs(np.asarray(model(other, X) - model(COMPLEX, X))) ** 2) / 2
    assert float(found.function) == pytest.approx(expected, rel=1e-12)


def test_invariance_under_a_change_of_units():
    for method in (None, __import__("optax").sgd(0.1)):
        found = pb.check_invariance(
            PROBLEM, COMPLEX, BATCH, reparametrisation=pb.Units(60.0), method=method, counts=()
        )
        assert (found.model < 1e-10) == (method is None)


@pytest.mark.parametrize("kind", [pb.NaturalFlow(), pb.EuclideanFlow(), pb.NewtonFlow()], ids=repr)
def test_flows(kind):
    found = [pb.flow(PROBLEM, p, BATCH, t1=0.1, kind=kind) for p in (COMPLEX, PAIRED)]
    assert distance(found[0].params, found[1].params) < 1e-10
    assert found[0].params["w"].dtype == complex and found[0].outputs(0.05).dtype == complex
    assert float(found[0].value(0.1)) == pytest.approx(float(found[1].value(0.1)), rel=1e-10)


def test_the_natural_flow_of_an_onto_model_is_that_of_its_outputs():
    """ż = -N(z - y)/N: each residual shrinks as e^-t."""
    sol = pb.flow(PROBLEM, COMPLEX, BATCH, t1=0.3, rank=None)
    expected = np.exp(-0.3) * residual()
    np.testing.assert_allclose(flat(sol.outputs(0.3) - Y), expected, atol=1e-6)


MIRROR = pb.BregmanMirror(lambda u: sum(jnp.sum(jnp.abs(x) ** 2) for x in jax.tree.leaves(u)))


@pytest.mark.parametrize(
    "step",
    [
        lambda p: pb.implicit_step(PROBLEM, p, BATCH, step=0.1),
        lambda p: pb.damped_newton_step(PROBLEM, p, BATCH, weight=50.0, throw=False),
        lambda p: pb.mirror_step(PROBLEM, p, BATCH, weight=9.0, mirror=pb.EuclideanMirror()),
        lambda p: pb.mirror_step(PROBLEM, p, BATCH, weight=9.0, mirror=MIRROR),
    ],
    ids=["implicit", "damped newton", "euclidean mirror", "bregman mirror"],
)
def test_proximal_steps(step):
    found = [step(p).params for p in (COMPLEX, PAIRED)]
    assert distance(*found) < 1e-9 and distance(found[0], COMPLEX) > 1e-6


def test_mirrors_of_probabilities_refuse_complex_numbers():
    with pytest.raises(ValueError, match=r"KLMirror and ReverseKLMirror: \['b'\] is complex"):
        pb.mirror_step(PROBLEM, COMPLEX, BATCH, weight=1.0, mirror=pb.KLMirror())


def test_standard_errors_name_both_parts():
    metric = pb.pullback(PROBLEM, COMPLEX, BATCH)
    with pytest.warns(UserWarning, match=r"of 22 parameters.*\['b'\]\[0\]\.real.*\.imag"):
        metric.standard_errors()
    one = pb.Composite(lambda p, x: x.astype(complex) * p, loss)
    errors = pb.pullback(one, jnp.asarray(1 + 2j), (X[:, 0],)).standard_errors()
    size = 1 / np.sqrt(np.sum(np.asarray(X[:, 0]) ** 2))
    np.testing.assert_allclose(errors, size * (1 + 1j), rtol=1e-12)


def test_gauss_newton_products():
    v = jax.tree.map(lambda x: x * 0.3 + 0.1, COMPLEX)
    product = pb.generalised_gauss_newton(PROBLEM, COMPLEX, v, BATCH)
    plain = pb.gauss_newton(PROBLEM, COMPLEX, v, BATCH)
    expected = jacobian().T @ jacobian() @ flat(v) / 5
    for found in (product, plain):
        np.testing.assert_allclose(flat(jax.tree.map(jnp.conj, found)), expected, atol=1e-12)
