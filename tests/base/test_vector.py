"""Sums of many rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pullback._base.vector import combine


@pytest.mark.parametrize("m", [3, 64, 71])
def test_sums_of_rows_by_eights(m):
    rows, y = (
        np.random.default_rng(m).standard_normal((m, 1100)),
        np.random.default_rng(1).standard_normal(m),
    )
    found = jax.jit(combine)(jnp.asarray(rows), jnp.asarray(y))
    np.testing.assert_allclose(found, rows.T @ y, rtol=1e-12, atol=1e-12)
    several = jax.vmap(combine, (None, 0))(jnp.asarray(rows), jnp.asarray([y, -y]))
    np.testing.assert_allclose(several, [found, -found], rtol=1e-12, atol=1e-12)
