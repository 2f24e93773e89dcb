"""Argument checks: one style of message, and values that are not known yet pass."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pullback._base import checks

STYLE = re.compile(r"\w+\((\w+)=.*\): \1 must be .*\.$", re.DOTALL)
LARGE = np.zeros((4, 4))

REFUSED = {
    "zero": (
        lambda: checks.positive("Tool", "size", 0.0),
        "Tool(size=0.0): size must be positive and finite, e.g. Tool(size=1).",
    ),
    "infinite": (
        lambda: checks.positive("Tool", "size", np.inf, zero=True),
        "Tool(size=inf): size must be finite and >= 0, e.g. Tool(size=1).",
    ),
    "bound": (
        lambda: checks.positive("Tool", "size", 1.0, below=1.0),
        "Tool(size=1.0): size must be positive and below 1, e.g. Tool(size=0.5).",
    ),
    "truth": (
        lambda: checks.positive("Tool", "size", True),
        "Tool(size=True): size must be positive and finite, e.g. Tool(size=1).",
    ),
    "text": (
        lambda: checks.positive("Tool", "size", "one", example="Tool(2.0)"),
        "Tool(size='one'): size must be positive and finite, e.g. Tool(2.0).",
    ),
    "vector": (
        lambda: checks.positive("Tool", "size", np.ones(2)),
        "Tool(size=[1. 1.]): size must be positive and finite, e.g. Tool(size=1).",
    ),
    "not a number": (
        lambda: checks.positive("Tool", "size", float("nan")),
        "Tool(size=nan): size must be positive and finite, e.g. Tool(size=1).",
    ),
    "fraction": (
        lambda: checks.integer("Tool", "count", 1.5),
        "Tool(count=1.5): count must be an integer, e.g. Tool(count=1).",
    ),
    "too few": (
        lambda: checks.integer("Tool", "count", 1, least=2),
        "Tool(count=1): count must be an integer of at least 2, e.g. Tool(count=2).",
    ),
    "function": (
        lambda: checks.function("Tool", "loss", 3, "Tool(jnp.sum)"),
        "Tool(loss=3): loss must be a function, e.g. Tool(jnp.sum).",
    ),
    "instance": (
        lambda: checks.instance("Tool", "part", "a", int, "an int", "Tool(1)"),
        "Tool(part='a'): part must be an int, e.g. Tool(1).",
    ),
    "complex": (
        lambda: checks.floating("fit", "x", LARGE * 1j, 2),
        "fit(x=complex128 of shape (4, 4)): x must be real, not complex (complex128).",
    ),
    "axes": (
        lambda: checks.floating("fit", "x", LARGE, 1),
        "fit(x=float64 of shape (4, 4)): x must be an array with 1 axis, not of shape (4, 4).",
    ),
    "empty": (
        lambda: checks.floating("fit", "x", np.zeros((0, 2)), 2),
        "fit(x=[]): x must be not empty (its shape is (0, 2)).",
    ),
    "infinite entry": (
        lambda: checks.floating("fit", "x", np.array([[1.0, np.inf]]), 2),
        "fit(x=[[ 1. inf]]): x must be finite, but x[0, 1] is not.",
    ),
    "length": (
        lambda: checks.vector("fit", "b", [1.0, 2.0], 3, "one per row"),
        "fit(b=[1. 2.]): b must be of shape (3,), one per row, not (2,).",
    ),
    "mask of numbers": (
        lambda: checks.mask("fit", "mask", np.ones(2), (2,)),
        "fit(mask=[1. 1.]): mask must be an array of booleans of shape (2,), not float64 of shape "
        "(2,).",
    ),
    "labels": (
        lambda: checks.labelled("fit", np.ones((2, 1)), np.array([0, 1])),
        "fit(y=[0. 1.]): y must be labels -1 and +1; for labels 0 and 1 pass 2 * y - 1.",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_one_style_of_message(name):
    call, message = REFUSED[name]
    with pytest.raises(ValueError) as raised:
        call()
    assert str(raised.value) == message and STYLE.match(message)


def test_a_good_value_is_returned_as_what_it_stands_for():
    checks.positive("Tool", "size", np.float32(0.5), below=1.0)
    checks.positive("Tool", "size", 0, zero=True)
    assert checks.integer("Tool", "count", np.int64(3), least=3) == 3
    assert checks.floating("fit", "x", [[1, 2]], 2).dtype == jnp.float64
    assert checks.floating("fit", "x", np.ones((1, 2), np.float32), 2).dtype == jnp.float32
    x, y = checks.labelled("fit", np.ones((2, 1), np.float32), [1, -1])
    assert x.shape == (2, 1) and y.dtype == jnp.float32 and y.tolist() == [1.0, -1.0]
    assert checks.mask("fit", "mask", np.array([True]), (1,)).dtype == bool


def test_the_value_of_a_traced_argument_passes_but_not_its_shape():
    @jax.jit
    def traced(x, size):
        checks.positive("Tool", "size", size)
        checks.labelled("fit", x, x[:, 0])
        return checks.vector("fit", "x", x[:, 0], 2, "one per row")

    # -1 is not positive, and NaN is neither finite nor a label.
    assert np.isnan(traced(jnp.full((2, 1), jnp.nan), -1.0)).all()
    with pytest.raises(ValueError, match=r"fit\(x=float64\[3\]\): x must be of shape \(2,\)"):
        traced(jnp.ones((3, 1)), 1.0)
    with pytest.raises(ValueError, match=r"Tool\(size=float64\[2\]\): size must be positive"):
        traced(jnp.ones((2, 1)), jnp.ones(2))


def test_values_are_shown_in_one_short_line():
    assert checks.shown(np.eye(2)) == "[[1. 0.] [0. 1.]]"
    assert checks.shown(jnp.zeros(10)) == "float64 of shape (10,)"
    assert checks.shown((np.ones(1), np.zeros((5, 5)))) == "([1.], float64 of shape (5, 5))"
    assert checks.shown((1, "a")) == "(1, 'a')"
