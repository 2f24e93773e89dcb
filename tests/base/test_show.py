"""Texts and tables for results: numbers, ranges of several, kinds of what is not known; HTML."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pullback._base import results, show
from pullback._base.results import RESULTS


class Pair(NamedTuple):
    left: Any
    right: Any


class Rule(eqx.Module):
    """A class whose defaults stand in its `__init__`."""

    rate: Any
    count: Any
    other: Any = None

    def __init__(self, rate=0.5, count=3):
        self.rate, self.count = jnp.asarray(rate), count

    def __repr__(self):
        return show.settings(self)


@pytest.mark.parametrize(
    "value, text",
    [
        (1.23456, "1.23"),
        (7, "7"),
        (jnp.asarray(True), "True"),
        (None, "-"),
        (np.float32(0.5), "0.5"),
        (jnp.asarray(0.25), "0.25"),
        (jnp.asarray(0.25, jnp.bfloat16), "0.25"),
        (jnp.nan, "nan"),
        (jnp.asarray(1 + 2j), "1+2j"),
        (jnp.asarray([3.0, 1.0, 2.0]), "1 to 3"),
        (jnp.asarray([2, 2]), "2"),
        (jnp.asarray([1.0, jnp.nan, 4.0]), "1 to 4 and 1 nan"),
        (jnp.asarray([jnp.nan, jnp.nan]), "nan"),
        (jnp.asarray([1.0, jnp.inf]), "1 to inf"),
        (jnp.asarray([True, False, True]), "2 of 3"),
        (jnp.zeros((0,)), "float64[0]"),
        (jnp.asarray([1 + 2j, 0]), "complex128[2]"),
        (jax.ShapeDtypeStruct((2, 3), jnp.float32), "float32[2,3]"),
    ],
)
def test_a_number_as_text(value, text):
    assert show.number(value) == text


def test_what_is_traced_or_deleted_shows_its_kind():
    seen = []
    jax.eval_shape(lambda x: seen.append(show.number(x)), jnp.zeros(3))
    x = jnp.zeros(2)
    x.delete()
    assert seen == ["float64[3]"] and show.number(x) == "float64[2]"
    assert not show.is_single(x) and show.is_single(1.0) and not show.is_single(None)


def test_numbers_that_do_not_apply_are_left_out():
    found = show.facts(rank=jnp.asarray(-1), loss=2.0, gain=jnp.nan, range_share=0.5, none=None)
    assert found == ["loss 2", "range share 0.5"]
    assert show.facts(rank=jnp.asarray([-1, 3])) == ["rank -1 to 3"]


def test_a_ratio_without_a_divisor_is_nan():
    assert show.ratio(jnp.asarray(6.0), 2.0) == 3.0
    assert np.isnan(show.ratio(1.0, jnp.asarray(0.0)))
    assert np.array_equal(show.ratio(np.ones(2), np.array([2.0, np.nan])), [0.5, np.nan], True)
    seen = []
    jax.eval_shape(lambda x: seen.append(show.ratio(x, 1.0)), jnp.zeros(()))
    assert seen == [None]


@pytest.mark.parametrize(
    "value, text",
    [
        (0.1, "0.1"),
        (1 / 3, "0.333333"),
        ("a", "'a'"),
        (jnp.asarray(2.0), "2.0"),
        (jnp.arange(3), "(0, 1, 2)"),
        (jnp.zeros((2, 2)), "float64[2,2]"),
        (jnp.zeros(9), "float64[9]"),
        (tuple(range(9)), "(0, 1, ..., 8)"),
        ({"a": 1.0}, "{'a': 1.0}"),
        (Pair(1.0, (2,)), "Pair(left=1.0, right=(2))"),
        (lambda x: x, "..."),
        (len, "<built-in function len>"),
        (eqx.nn.MLP(2, 2, 2, 2, key=jax.random.key(0)), "MLP"),
        (Rule(), "Rule()"),
        (Rule(0.25), "Rule(rate=0.25)"),
        (Rule(count=4), "Rule(count=4)"),
        (None, "None"),
    ],
)
def test_a_setting_in_one_line(value, text):
    assert show.brief(value) == text


def test_the_first_setting_is_shown_if_asked_for():
    assert show.settings(Rule(), first=True) == "Rule(rate=0.5)"


def test_tables_escape_what_they_hold():
    page = show.table([("<b>", "a & b")]) + show.grid(["<i>"], [["<script>"]]) + show.paragraph("<")
    assert "<script>" not in page and "<b>" not in page and "<i>" not in page
    assert "&lt;script&gt;" in page and "a &amp; b" in page and "<p>&lt;</p>" in page


def test_results_have_names():
    several = jax.vmap(lambda x: RESULTS.where(x > 0, RESULTS.successful, RESULTS.unconverged))
    found = several(jnp.asarray([1.0, -1.0, 2.0]))
    assert results.outcome(RESULTS.rank_zero) == "rank_zero"
    assert results.outcome(found) == "2 successful, 1 unconverged" == results.describe(found)
    assert results.describe(RESULTS.successful) == "successful"
    assert results.describe(RESULTS.rank_zero).startswith("rank_zero: The pullback metric is zero")
    assert results.names_of([0, 10**6]).tolist() == ["successful", "1000000"]
    seen = []
    jax.eval_shape(lambda x: seen.append(results.describe(several(x))), jnp.ones(2))
    assert seen == ["traced"]
