"""Every metric of the registry passes `check_metric`, and `check_metric` can fail."""

import equinox as eqx
import jax.numpy as jnp
import pytest
from registry_metrics import METRICS, Registry, normal

from pullback import metric as m
from pullback.testing import check_metric


@pytest.mark.parametrize("name", METRICS)
def test_metric(name):
    metric, make_z, make_targets = METRICS[name]
    check_metric(metric, make_z(), make_targets())


def test_the_registry_is_complete_and_refuses_duplicates():
    public = {
        value
        for value in vars(m).values()
        if isinstance(value, type) and issubclass(value, m.AbstractMetric)
    }
    assert {c.__name__ for c in public if not c.__name__.startswith("Abstract")} == {
        type(c.metric).__name__ for c in METRICS.values()
    }
    registry = Registry()
    registry["a"] = METRICS["euclidean"]
    with pytest.raises(KeyError, match="registered already"):
        registry["a"] = METRICS["euclidean"]


class Wrong(m.AbstractMetric):
    """The Euclidean metric with one thing wrong."""

    fault: str = eqx.field(static=True)
    nonsingular = True
    inner = m.Euclidean(1.0)

    def root(self, z):
        root = self.inner.root(z)
        if self.fault == "root":
            return eqx.tree_at(lambda r: r.log_scale, root, root.log_scale + 0.1)
        return (
            root
            if self.fault != "dtype"
            else eqx.tree_at(lambda r: r.log_scale, root, root.log_scale.astype(jnp.float64))
        )

    def apply(self, z, v):
        return jnp.array([1.0, 1.0, 0.0]) * v if self.fault == "nonsingular" else v

    def sharp(self, z, c):
        return 2 * c if self.fault == "sharp" else c

    def divergence(self, u, z):
        value = self.inner.divergence(u, z)
        return (
            value + {"shifted": 0.1, "negative": -2 * value}.get(self.fault, 0.0)
            if self.fault != "hessian"
            else 1.1 * value
        )


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("root", r"S Sᵀ v against M v: error .* largest entry"),
        ("nonsingular", "says it is nonsingular"),
        ("sharp", "M M⁺ c against c"),
        ("shifted", r"ρ\(z, z\) = 1.000e-01, not 0"),
        ("negative", "the divergence is negative"),
        ("hessian", r"has order 2\.00 in ε, not 3"),
        ("dtype", "outputs in float32 give"),
    ],
)
def test_check_metric_can_fail(fault, message):
    with pytest.raises(AssertionError, match=message):
        check_metric(Wrong(fault), normal(3))


def test_check_metric_accepts_the_right_one_and_wants_float64():
    check_metric(Wrong("none"), normal(3))
    with pytest.raises(ValueError, match="float64 outputs"):
        check_metric(m.Euclidean(), jnp.ones(3, jnp.float32))
