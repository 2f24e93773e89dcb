"""Steps, training, Optax and constraints of complex parameters move as those of their pairs."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from complex_models import (
    BATCH,
    COMPLEX,
    FORMS,
    MIXED,
    PAIRED,
    X,
    Y,
    distance,
    flat,
    loss,
    model,
)

import pullback as pb

PROBLEM = pb.Composite(model, loss)
TOTAL = lambda p: jnp.mean(loss(model(p, X), Y))
decay = lambda p: 0.01 * sum(jnp.sum(jnp.abs(x) ** 2) for x in jax.tree.leaves(p))
OPTIMISERS = {
    "line search": {},
    "levenberg-marquardt": {"step": pb.step.LevenbergMarquardt()},
    "trust region": {"step": pb.step.TrustRegion(radius=0.5)},
    "geodesic": {"step": pb.step.Geodesic(pb.step.Fixed(0.1))},
    "spring": {"step": 0.1, "inverse": pb.Tikhonov(0.1), "momentum": pb.Spring(0.9)},
    "heavy ball": {"step": 0.1, "momentum": pb.HeavyBall(0.5)},
    "penalty": {"step": 0.1, "inverse": pb.Tikhonov(0.1), "penalty": decay},
    "blocks": {"step": 0.1, "solver": pb.solver.Blocks(lambda path: path)},
}


def walked(opt, params, steps=3):
    state = opt.init(params)
    for _ in range(steps):
        params, state, record = opt.step(params, state, BATCH)
    return params, record


@pytest.mark.parametrize("name", OPTIMISERS)
def test_every_rule_moves_all_forms_alike(name):
    opt = pb.NaturalGradientDescent(PROBLEM, **OPTIMISERS[name])
    moved, record = walked(opt, COMPLEX)
    for form in (PAIRED, MIXED):
        other, same = walked(opt, form)
        # |z|² of a pair is not that of a complex leaf where the penalty is written for leaves.
        assert distance(moved, other) < 1e-11
        assert float(record.loss) == pytest.approx(float(same.loss), rel=1e-10)
    assert float(record.loss) < float(TOTAL(COMPLEX))
    assert all(moved[k].dtype == x.dtype for k, x in COMPLEX.items())


def test_block_descent_of_complex_leaves():
    opt = pb.BlockDescent(PROBLEM, lambda path: path, rate=0.1)
    found = [walked(opt, form)[0] for form in (COMPLEX, PAIRED)]
    assert distance(*found) < 1e-11


def test_optax_receives_what_jax_grad_returns():
    gradient = jax.grad(TOTAL)(COMPLEX)
    tx = pb.as_optax(pb.NaturalGradientDescent(PROBLEM, step=1.0))
    updates, _ = tx.update(gradient, tx.init(COMPLEX), COMPLEX, batch=BATCH)
    ng = pb.natural_gradient(PROBLEM, COMPLEX, BATCH)
    assert distance(updates, jax.tree.map(jnp.negative, ng.vector)) < 1e-12
    moved = optax.apply_updates(COMPLEX, jax.tree.map(lambda x: 0.01 * x, updates))
    assert float(TOTAL(moved)) < float(TOTAL(COMPLEX))
    # A gradient of another function is followed as one of the pairs.
    other = jax.grad(lambda p: TOTAL(p) + decay(p))
    opt = pb.NaturalGradientDescent(PROBLEM, step=1.0, inverse=pb.Tikhonov(0.1))
    step = lambda p: opt.step(p, opt.init(p), BATCH, gradient=other(p))[0]
    assert distance(step(COMPLEX), step(PAIRED)) < 1e-11


@pytest.mark.parametrize("rule", [pb.step.LevenbergMarquardt(), 0.1])
def test_training_resumes_to_the_bit(tmp_path, rule):
    momentum = pb.Spring(0.9) if rule == 0.1 else None
    inverse = pb.Tikhonov(0.1) if rule == 0.1 else None
    opt = pb.NaturalGradientDescent(PROBLEM, inverse, step=rule, momentum=momentum)
    whole = pb.fit(opt, COMPLEX, BATCH, steps=5, progress=False)
    pb.fit(opt, COMPLEX, BATCH, steps=2, progress=False, checkpoint=tmp_path / "run")
    resumed = pb.fit(opt, COMPLEX, BATCH, steps=5, progress=False, checkpoint=tmp_path / "run")
    for k, x in whole.params.items():
        assert x.dtype == COMPLEX[k].dtype and np.array_equal(x, resumed.params[k])
    assert whole.history["loss"][-1] < whole.history["loss"][0]


def test_boxes_bound_real_and_imaginary_parts():
    box = pb.constraint.Clipping(-0.1, 0.2)
    clipped = box(COMPLEX)
    np.testing.assert_array_equal(flat(clipped), np.clip(flat(COMPLEX), -0.1, 0.2))
    assert float(box.slack(clipped)) == 0 and float(box.slack(COMPLEX)) < 0
    each = pb.constraint.Clipping(-0.1 - 0.3j, 0.2 + 0.4j)
    one = each(COMPLEX["w"])
    np.testing.assert_array_equal(one.imag, np.clip(COMPLEX["w"].imag, -0.3, 0.4))
    np.testing.assert_array_equal(one.real, np.clip(COMPLEX["w"].real, -0.1, 0.2))
    with pytest.raises(ValueError, match="lower must not exceed upper"):
        pb.constraint.Clipping(1j, 1.0 + 0.5j)
    with pytest.raises(ValueError, match="a real parameter has a complex bound"):
        each(COMPLEX)
    opt = pb.NaturalGradientDescent(PROBLEM, step=0.1, constraint=box)
    assert distance(walked(opt, clipped)[0], walked(opt, box(PAIRED))[0]) < 1e-11
    step = pb.constrained_step(
        PROBLEM, COMPLEX, BATCH, step=0.1, constraint=pb.constraint.Penalty(box, 3.0)
    )
    other = pb.constrained_step(
        PROBLEM, PAIRED, BATCH, step=0.1, constraint=pb.constraint.Penalty(box, 3.0)
    )
    assert distance(step.params, other.params) < 1e-11


def test_hermitian_matrices_and_probabilities():
    raw = np.asarray(COMPLEX["w"])[:2, :2]
    matrix = jnp.asarray(raw + raw.conj().T)
    there = pb.constraint.PositiveDefinite(0.01)(matrix)
    values, vectors = np.linalg.eigh(np.asarray(matrix))
    nearest = (vectors * np.maximum(values, 0.01)) @ vectors.conj().T
    np.testing.assert_allclose(there, nearest, atol=1e-14)
    assert float(pb.constraint.PositiveDefinite().slack(there)) == pytest.approx(
        max(0.01, values[0])
    )
    for use in (pb.constraint.Simplex(), pb.constraint.Simplex().slack):
        with pytest.raises(ValueError, match="Probabilities are real: constrain a part"):
            use(COMPLEX)


def test_forms_are_those_of_one_function():
    outputs = [model(form, X) for form in FORMS.values()]
    assert max(distance(z, outputs[0]) for z in outputs) < 1e-14
