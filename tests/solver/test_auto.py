"""`Auto`: what it chooses, why, and what it says where nothing can be chosen."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exact import conditioned, linear, network

import pullback as pb
from pullback import testing
from pullback.solver import _auto

MILLION = 10**6
# (m, P, dtype, inverse, memory, what is chosen)
TABLE = [
    (100, 1000, "float64", pb.MoorePenrose(), 2**32, "SVD"),
    (1000, 5000, "float64", pb.MoorePenrose(), 2**32, "SVD"),
    (1000, 5001, "float64", pb.MoorePenrose(), 2**32, "Dual"),
    (5001, 1000, "float64", pb.MoorePenrose(), 2**32, "Primal"),
    (100, 10_000, "float64", pb.Tikhonov(0.1), 2**32, "SVD"),
    (100, 10_001, "float64", pb.Tikhonov(0.1), 2**32, "Dual"),
    (10_001, 100, "float64", pb.Tikhonov(0.1), 2**32, "Primal"),
    (100, 10_001, "float64", pb.TruncatedRank(3), 2**32, "SVD"),
    (100, 10_001, "float64", testing.random_filter(1), 2**32, "SVD"),
    (100, 1000, "float64", pb.MoorePenrose(), 12 * 10**5, "Krylov"),
    (100, 1000, "float32", pb.MoorePenrose(), 12 * 10**5, "Dual"),
    (100, 1000, "float64", pb.MoorePenrose(), 30 * 10**5, "SVD"),
    (100, 1000, "float64", pb.MoorePenrose(), 25 * 10**5, "Dual"),
    (2000, MILLION, "float32", pb.MoorePenrose(), 2**32, "Krylov"),
    (MILLION, MILLION, "float32", pb.Tikhonov(0.1), 2**32, "Krylov"),
]


@pytest.mark.parametrize(("rows", "size", "dtype", "inverse", "memory", "name"), TABLE)
def test_what_is_chosen(rows, size, dtype, inverse, memory, name):
    solver, reason = pb.solver.Auto(memory).select(rows, size, jnp.dtype(dtype), inverse)
    assert solver.name == name, reason
    assert reason.startswith(f"A is {rows} x {size}: ")


def test_the_inverse_defaults_to_the_undamped_one():
    auto = pb.solver.Auto()
    for shape in ((100, 10_001), (2000, 3000)):
        given = auto.select(*shape, jnp.dtype("float64"), pb.MoorePenrose())
        assert auto.select(*shape, jnp.dtype("float64")) == given


@pytest.mark.parametrize(
    ("rows", "size", "inverse", "memory", "words"),
    [
        (10, 20, pb.MoorePenrose(), 2**32, "undamped and m P min(m, P) <= 5e+09, so the SVD of A"),
        (10, 20, pb.Tikhonov(1.0), 2**32, "damped and m P min(m, P) <= 1e+08, so the SVD of A"),
        (1000, 9000, pb.MoorePenrose(), 2**32, "the 1000 x 1000 kernel, from the dense A, takes"),
        (9000, 1000, pb.MoorePenrose(), 2**32, "the 1000 x 1000 metric, from blocks of A, takes"),
        (1000, 9000, pb.MoorePenrose(), 2**32, "the fewest operations that fit in 4 GiB"),
        (9000, 9000, pb.MoorePenrose(), 2**30, "factors would take 3.05 GiB or more, 1 GiB are"),
    ],
)
def test_the_reason(rows, size, inverse, memory, words):
    reason = pb.solver.Auto(memory).select(rows, size, jnp.dtype("float64"), inverse).reason
    assert words in reason


@pytest.mark.parametrize(
    ("inverse", "words"),
    [
        (pb.TruncatedRank(3), "and Krylov cannot cut off singular values"),
        (pb.MoorePenrose(rtol=0.1), "and Krylov cannot cut off singular values"),
        (testing.random_filter(1), r"and solver=Krylov\(\.\.\.\) never computes singular values"),
    ],
    ids=["TruncatedRank", "rtol", "filter"],
)
def test_where_nothing_fits_the_message_has_the_memory_and_the_cure(inverse, words):
    auto = pb.solver.Auto(memory=1000)
    message = rf"A is 10 x 20: .* GiB at least, more than Auto\(memory=1000\) allows, {words}.*SVD"
    with pytest.raises(ValueError, match=message):
        auto.select(10, 20, jnp.dtype("float64"), inverse)
    metric = linear(conditioned(6, 10, 10.0))
    with pytest.raises(ValueError, match=r"A is 6 x 10: .* more than Auto\(memory=1000\) allows"):
        metric.factorise(inverse, auto)
    assert auto.select(10, 20, jnp.dtype("float64"), pb.Tikhonov(0.1)).solver.name == "Krylov"


def test_it_computes_what_the_chosen_solver_computes(monkeypatch):
    metric, a = network(samples=4, width=8)
    r = jnp.asarray(np.random.default_rng(1).standard_normal(a.shape[0]))
    for limit, chosen in ((10**9, pb.solver.SVD()), (1, pb.solver.Dual())):
        monkeypatch.setattr(_auto, "SVD_WORK", limit)
        with jax.disable_jit():
            found = metric.factorise(pb.MoorePenrose(), pb.solver.Auto())
            assert found.solver == chosen.name
            expected = metric.factorise(pb.MoorePenrose(), chosen).solve_lifted(r)
            np.testing.assert_array_equal(found.solve_lifted(r), expected)
            factors = pb.solver.Auto().factorise(metric.whitened, pb.MoorePenrose())
            np.testing.assert_array_equal(factors.solve_lifted(r), expected)


def test_the_program_of_a_small_model_is_not_walked(monkeypatch):
    metric, _ = network(samples=4, width=8)
    monkeypatch.setattr(_auto, "setting_of", None)
    solver, rows = pb.solver.Auto().resolve(metric.whitened, pb.MoorePenrose())
    assert solver.name == "SVD" and rows is metric.whitened
    monkeypatch.undo()
    monkeypatch.setattr(_auto, "SVD_WORK", 1)
    solver, rows = pb.solver.Auto().resolve(metric.whitened, pb.MoorePenrose())
    assert solver.name == "Dual" and rows.analysis is not None
    reason = pb.solver.Auto().choose(_auto.setting_of(rows)[0], pb.MoorePenrose()).reason
    assert "the 8 x 8 kernel, from factors of the layers, takes" in reason
