"""`check_invariance` of methods that fail in a probe: it is named, and the others are judged."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import normal

import pullback as pb
from pullback import testing

X, Y = normal(6, 2), normal(6, seed=1)
PARAMS = normal(2, seed=2)
PROBLEM = pb.Composite(lambda p, x: jnp.tanh(x @ p), lambda z, y: (z - y) ** 2 / 2)
F = pb.Units(60.0)


def gradient(problem, params, batch):
    return pb.differential(problem, params, batch).tree


def normalised(problem, params, batch):
    """g/‖g‖: NaN where the gradient is zero, as under the cubic map."""
    g = gradient(problem, params, batch)
    return g / jnp.linalg.norm(g)


def shampoo(problem, params, batch):
    """G⁻¹ᐟ² of the outer product of the gradient, by eigenvalues; infinite at zero."""
    g = np.asarray(gradient(problem, params, batch))
    values, vectors = np.linalg.eigh(np.outer(g, g) + 0.5 * (g @ g) * np.eye(g.size))
    if values[0] <= 0:
        raise np.linalg.LinAlgError("the preconditioner is singular")
    return jnp.asarray(vectors @ ((vectors.T @ g) / np.sqrt(values)))


@pytest.mark.parametrize(
    ("method", "reason"),
    [(normalised, "not finite"), (shampoo, "the preconditioner is singular")],
    ids=["normalised", "shampoo"],
)
def test_the_cubic_map_fails_and_the_others_are_judged(method, reason):
    record = pb.check_invariance(PROBLEM, PARAMS, (X, Y), reparametrisation=F, method=method)
    assert [probe for probe, _ in record.failures] == ["in the cubic map (Definition 4)"]
    assert reason in record.failures[0][1] and reason in str(record)
    assert np.isnan(record.independence)
    # By hand: g/‖g‖ in other units is 60 times the same direction; Fw with w = Fᵀg/‖Fᵀg‖.
    g = np.asarray(jax.grad(lambda p: jnp.mean((jnp.tanh(X @ p) - Y) ** 2) / 2)(PARAMS))
    if method is normalised:
        unit, scaled = g / np.linalg.norm(g), 60.0 * g / np.linalg.norm(g)
        expected = np.linalg.norm(scaled - unit) / np.linalg.norm(unit)
        assert record.parameters == pytest.approx(expected, rel=1e-9)
    assert np.isfinite([record.model, record.seen, record.order]).all()
    assert record.message.startswith("not invariant")


def test_a_method_that_fails_in_the_new_parameters_is_not_judged():
    def only_here(problem, params, batch):
        if not np.allclose(params, PARAMS):
            raise RuntimeError("no descent elsewhere\nwith more lines")
        return gradient(problem, params, batch)

    record = pb.check_invariance(PROBLEM, PARAMS, (X, Y), reparametrisation=F, method=only_here)
    assert dict(record.failures)["in the new parameters"] == "no descent elsewhere"
    assert record.diffeomorphism and np.isnan(record.model) and "not judged" in record.message
    with pytest.raises(AssertionError, match="not judged: the method failed in the new parameters"):
        testing.assert_invariant(PROBLEM, PARAMS, (X, Y), method=only_here)


def test_a_method_that_fails_along_trajectories_keeps_its_directions():
    class Twice(eqx.Module):
        """Fails in its third step."""

        problem: pb.Composite

        def init(self, params):
            return 0

        def step(self, params, count, batch):
            if count == 2:
                raise RuntimeError("out of steps")
            vector = pb.natural_gradient(self.problem, params, batch).vector
            return params - vector, count + 1, None

    record = pb.check_invariance(
        PROBLEM, PARAMS, (X, Y), reparametrisation=F, method=Twice(PROBLEM)
    )
    assert record.failures == (("along trajectories", "out of steps"),)
    assert record.model < 1e-9 and np.isnan(record.trajectory_order)
    assert np.isnan(record.ends).all() and "failed along trajectories" in str(record)


def test_a_trajectory_that_diverges_is_named():
    def explodes(problem, params, batch):
        start = jnp.allclose(params, PARAMS) | jnp.allclose(60.0 * params, PARAMS)
        g = gradient(problem, params, batch)
        return jnp.where(start, g, g / 0.0)

    record = pb.check_invariance(PROBLEM, PARAMS, (X, Y), reparametrisation=F, method=explodes)
    assert "not finite" in dict(record.failures)["along trajectories"]


def test_a_method_that_fails_at_the_point_itself_raises():
    with pytest.raises(ValueError, match="not finite at this point"):
        pb.check_invariance(
            PROBLEM, PARAMS, (X, Y), reparametrisation=F, method=lambda *_: jnp.full(2, jnp.nan)
        )


def test_methods_that_do_not_fail_have_no_failures():
    record = pb.check_invariance(PROBLEM, PARAMS, (X, Y), reparametrisation=F)
    assert record.failures == () and "failed" not in str(record)
