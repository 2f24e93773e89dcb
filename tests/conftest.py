"""Every test runs in float64, with strict promotion of dtypes and ranks, from fixed seeds."""

import itertools
import os
from pathlib import Path

# Compiling takes nearly all of the time here, and what is compiled runs for a millisecond: do not
# optimise it.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)
# Before NumPy is imported: the threads of LAPACK fight with those of the other workers (see the
# Makefile).
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax
import numpy as np
import pytest
from sampling import seed, taken

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


# Files whose parametrised tests run, by default, on one of n of their cases: another one with each
# seed (`sampling.py`); and tests of theirs that are not like the others. `make test-all` runs all.
THINNED = {
    "test_agreement": 5,
    "test_bench": 2,
    "test_block_descent": 2,
    "test_blocks": 3,
    "test_certificate": 8,
    "test_certificate_fails": 4,
    "test_claims": 12,
    "test_constrained": 2,
    "test_contracts": 14,
    "test_covariance": 2,
    "test_cut": 3,
    "test_depth": 2,
    "test_derivative": 6,
    "test_every_metric_agrees": 1,
    "test_examples": 3,
    "test_fields": 2,
    "test_filters": 14,
    "test_flow": 2,
    "test_found": 3,
    "test_gauge": 10,
    "test_glm": 2,
    "test_indefinite": 2,
    "test_invariance": 2,
    "test_iterative_solvers_agree": 1,
    "test_kernel": 4,
    "test_lapack": 3,
    "test_likelihood": 3,
    "test_measure": 12,
    "test_metric_batch": 4,
    "test_natural_gradient": 6,
    "test_optax_face": 2,
    "test_preconditioner": 3,
    "test_proximal": 2,
    "test_pullback_metric": 8,
    "test_recompiling": 2,
    "test_rows": 3,
    "test_rules": 24,
    "test_samplers": 2,
    "test_saturation": 4,
    "test_scores": 3,
    "test_solver": 2,
    "test_stateful": 3,
    "test_stateful_gradient": 12,
    "test_stateful_step": 6,
    "test_steep": 5,
    "test_tangent_kernel": 4,
    "test_targets": 3,
    "test_validate": 3,
    "test_walk": 4,
    "test_without_loss": 2,
    "test_xla": 2,
}


def pytest_report_header():
    return f"sample of the registries: SEED={seed()}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    seen = {}
    for item in items:
        every = THINNED.get(getattr(item, "originalname", ""), THINNED.get(item.path.stem))
        if every is None or not hasattr(item, "callspec"):
            continue
        test = item.path, item.originalname
        place = seen[test] = seen.get(test, -1) + 1
        if not taken(place, every, seed()):
            item.add_marker(pytest.mark.slow)


MAPS, EVERY, MANY = Path("/proc/self/maps"), 2, 15_000
_finished = itertools.count(1)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown():
    """Linux allows a process 65 530 mappings, XLA makes some for every program, and the first that
    is refused is a segmentation fault: forget the programs in time.
    """
    if next(_finished) % EVERY == 0 and MAPS.exists() and MAPS.read_bytes().count(b"\n") > MANY:
        jax.clear_caches()


@pytest.fixture
def key():
    return jax.random.key(0)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def eager():
    """Operation by operation: each is compiled once for all the cases of a shape."""
    with jax.disable_jit():
        yield
