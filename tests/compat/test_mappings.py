"""Programs are forgotten, with a warning, before the memory mappings of the process are used up."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pullback as pb
from pullback._compat import mappings

needs_proc = pytest.mark.skipif(not mappings.MAPS.exists(), reason="counts /proc/self/maps")
STATUS = Path("/proc/self/status")
PROBLEM = pb.Composite(lambda p, x: x @ p, lambda z, y: (z - y) ** 2 / 2)


def solve(count):
    """The natural gradient of least squares, which is the distance to the solution."""
    x = jnp.asarray(np.random.default_rng(count).normal(size=(count, 2)))
    return pb.natural_gradient(PROBLEM, jnp.ones(2), (x, jnp.zeros(count))).vector


@needs_proc
def test_a_sweep_over_sizes_forgets_and_goes_on(monkeypatch, tmp_path):
    limit = tmp_path / "limit"
    limit.write_text("100\n")
    solve(3)
    monkeypatch.setattr(mappings, "LIMIT", limit)
    with pytest.warns(mappings.ProgramsWarning, match=r"of the 100 memory mappings"):
        answer = solve(4)
    np.testing.assert_allclose(answer, 1.0, rtol=1e-10)


@needs_proc
def test_also_inside_of_a_users_own_jit(monkeypatch, tmp_path):
    """Programs of the caller count too, and are forgotten while another one is traced."""
    limit = tmp_path / "limit"
    limit.write_text("100\n")
    opt = pb.NaturalGradientDescent(PROBLEM)
    step = jax.jit(opt.step)
    batch = lambda count: (jnp.asarray(np.random.default_rng(count).normal(size=(count, 2))),
                           jnp.zeros(count))  # fmt: skip
    start = (jnp.ones(2), opt.init(jnp.ones(2)))
    step(*start, batch(3))
    monkeypatch.setattr(mappings, "LIMIT", limit)
    with pytest.warns(mappings.ProgramsWarning, match=r"of the 100 memory mappings"):
        answer = step(*start, batch(4))[0]
    np.testing.assert_allclose(answer, 0.0, atol=1e-12)


def test_nothing_happens_below_the_limit(recwarn):
    mappings.forget_if_full()
    assert not recwarn.list


def test_without_proc_nothing_is_done(monkeypatch, tmp_path, recwarn):
    monkeypatch.setattr(mappings, "MAPS", tmp_path / "absent")
    mappings.forget_if_full()
    assert not recwarn.list


@pytest.mark.slow
@needs_proc
@pytest.mark.filterwarnings("always::pullback._compat.mappings.ProgramsWarning")
def test_a_thousand_shapes_in_one_process():
    """No crash, no wrong answer, and the memory stops growing."""
    resident = lambda: int(STATUS.read_text().split("VmRSS:")[1].split()[0])
    taken = []
    for count in range(3, 1003):
        np.testing.assert_allclose(solve(count), 1.0, rtol=1e-9)
        taken.append(resident())
    assert max(taken[500:]) < 1.2 * max(taken[:500])
