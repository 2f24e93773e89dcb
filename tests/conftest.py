"""Every test runs in float64, with strict promotion of dtypes and ranks, from fixed seeds (the fixtures `key` and `rng`)."""

import os

# Before NumPy is imported: the threads of LAPACK fight with those of the other workers (see the Makefile).
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax
import numpy as np
import pytest

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture
def key():
    return jax.random.key(0)


@pytest.fixture
def rng():
    return np.random.default_rng(0)
