"""NetKet beside us: the same numbers, in its drivers and in `fit`. Skipped where it is absent."""

import contextlib
import importlib.metadata
import os
import runpy
import sys
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import pullback as pb
from pullback import vmc
from pullback.vmc._netket import check_version


def test_an_old_version_is_refused():
    with pytest.raises(ImportError, match=r"NetKet 3\.9\.1 is too old; pullback needs 3\.23"):
        check_version("3.9.1")
    check_version("3.23.1")
    check_version("4.0.dev1")


def test_an_old_or_missing_netket_is_said_before_it_is_imported(monkeypatch):
    """By its metadata: an import of an old NetKet may fail for reasons of its own."""
    calls = (lambda: vmc.from_netket(None, None), vmc.netket_preconditioner)
    script = str(Path(__file__).parents[2] / "examples" / "vmc_netket.py")
    monkeypatch.syspath_prepend(str(Path(script).parent))
    monkeypatch.setitem(sys.modules, "netket", None)
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None, raising=False)
    for version, words in (
        ("3.9.1", r"NetKet 3\.9\.1 is too old"),
        ("3.23.0", "This needs NetKet"),
    ):
        monkeypatch.setattr(importlib.metadata, "version", lambda _, v=version: v)
        for call in calls:
            with pytest.raises(ImportError, match=words):
                call()
        monkeypatch.delitem(sys.modules, "_netket", raising=False)
        with pytest.raises(SystemExit, match=words):
            runpy.run_path(script)


@contextlib.contextmanager
def plain():
    """NetKet's own code promotes dtypes and warns."""
    with (
        warnings.catch_warnings(),
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
    ):
        warnings.simplefilter("ignore")
        yield


@pytest.fixture(scope="module")
def nk():
    with plain():
        return pytest.importorskip("netket")


def states(nk, sites=6):
    """A full sum and chains, of the same RBM."""
    hilbert = nk.hilbert.Spin(0.5, sites)
    hamiltonian = nk.operator.Ising(hilbert, nk.graph.Chain(sites), h=1.0)
    model = nk.models.RBM(alpha=2, param_dtype=float)
    sampler = nk.sampler.MetropolisLocal(hilbert, n_chains=16)
    whole = nk.vqs.FullSumState(hilbert, model, seed=0)
    chains = nk.vqs.MCState(sampler, model, n_samples=128, seed=0)
    return hamiltonian, whole, chains


def close(a, b, rtol):
    a, b = (np.asarray(ravel_pytree(x)[0]) for x in (a, b))
    assert np.linalg.norm(a - b) <= rtol * np.linalg.norm(b)


def test_the_direction_is_that_of_dense_stochastic_reconfiguration(nk):
    with plain():
        hamiltonian, *both = states(nk)
        for state in both:
            _, gradient = state.expect_and_grad(hamiltonian)
            dense = nk.optimizer.qgt.QGTJacobianDense()
            sr = nk.optimizer.SR(dense, nk.optimizer.solver.cholesky, diag_shift=0.01)
            expected = sr(state, gradient)
            for solver in (None, pb.solver.Dual(), pb.solver.Primal()):
                found = vmc.netket_preconditioner(pb.Tikhonov(0.01), solver)(state, gradient)
                close(found, expected, 1e-10)


def test_a_full_sum_is_netkets_energy_gradient_and_operator(nk):
    with plain():
        hamiltonian, whole, _ = states(nk)
        energy, params, batch = vmc.from_netket(whole, hamiltonian)
        stats, gradient = whole.expect_and_grad(hamiltonian)
        ng = pb.natural_gradient(energy, params, batch)
        np.testing.assert_allclose(ng.value, stats.mean, rtol=1e-12)
        close(ng.covector, gradient, 1e-10)
        ours = vmc.exact_energy(vmc.ising(vmc.Lattice((6,)), field=1.0))
        lowest = np.linalg.eigvalsh(np.asarray(hamiltonian.to_dense()))[0]
        np.testing.assert_allclose(ours, lowest, rtol=1e-12)


def test_a_run_of_netkets_driver(nk):
    with plain():
        hamiltonian, whole, chains = states(nk)
        exact = vmc.exact_energy(vmc.ising(vmc.Lattice((6,)), field=1.0))
        for state in (whole, chains):
            driver = nk.driver.VMC(
                hamiltonian,
                nk.optimizer.Sgd(0.05),
                variational_state=state,
                preconditioner=vmc.netket_preconditioner(),
            )
            driver.run(40, out=nk.logging.RuntimeLog(), show_progress=False)
            assert abs(float(state.expect(hamiltonian).mean.real) - exact) < 0.02 * abs(exact)


def test_a_run_of_ours_with_netkets_sampler(nk):
    with plain():
        hamiltonian, _, chains = states(nk)
        energy, params, batches = vmc.from_netket(chains, hamiltonian)
        opt = pb.NaturalGradientDescent(energy, step=0.05, inverse=pb.Tikhonov(0.01))
        fit = pb.fit(opt, params, batches, 40, progress=False)
        chains.parameters = fit.params
        exact = vmc.exact_energy(vmc.ising(vmc.Lattice((6,)), field=1.0))
        assert abs(float(chains.expect(hamiltonian).mean.real) - exact) < 0.02 * abs(exact)


RATE, SHIFT, STEPS = 0.02, 0.01, 12


def driven(nk, hamiltonian, state, **options):
    """The parameters after some steps of NetKet's driver of stochastic reconfiguration."""
    driver = nk.driver.VMC_SR(
        hamiltonian, nk.optimizer.Sgd(RATE), diag_shift=SHIFT, variational_state=state, **options
    )
    driver.run(STEPS, out=nk.logging.RuntimeLog(), show_progress=False)
    return state.parameters


def fitted(state, hamiltonian, solver=None, momentum=None):
    """The parameters after as many steps of ours."""
    energy, params, batches = vmc.from_netket(state, hamiltonian)
    opt = pb.NaturalGradientDescent(
        energy, step=RATE, inverse=pb.Tikhonov(SHIFT), solver=solver, momentum=momentum
    )
    return pb.fit(opt, params, batches, STEPS, progress=False).params


def test_a_run_is_that_of_the_driver_on_the_same_samples(nk):
    """NetKet's metric form and its kernel form, on the samples of one seed, and on all states."""
    with plain():
        hamiltonian, *ours = states(nk)
        for k, state in enumerate(ours):
            theirs = [states(nk)[1 + k] for _ in range(2)]
            expected = driven(nk, hamiltonian, theirs[0], use_ntk=False, on_the_fly=False)
            found = fitted(state, hamiltonian)
            close(found, expected, 1e-10)
            if k:
                kernel = driven(nk, hamiltonian, theirs[1], use_ntk=True)
                close(found, kernel, 1e-10)


def test_momentum_is_that_of_the_driver(nk):
    with plain():
        hamiltonian, _, theirs = states(nk)
        expected = driven(nk, hamiltonian, theirs, use_ntk=True, momentum=0.9)
        for solver in (pb.solver.Dual(), pb.solver.Primal()):
            found = fitted(states(nk)[2], hamiltonian, solver, pb.Spring(0.9))
            close(found, expected, 1e-10)


def test_a_complex_network_moves_as_in_the_driver(nk):
    """Complex parameters: the direction that NetKet takes, factor 2 and conjugate included."""
    with plain():
        hilbert = nk.hilbert.Spin(0.5, 5)
        hamiltonian = nk.operator.Ising(hilbert, nk.graph.Chain(5), h=1.0)
        model = nk.models.RBM(alpha=1, param_dtype=complex)
        make = lambda: nk.vqs.FullSumState(hilbert, model, seed=3)
        expected = driven(nk, hamiltonian, make(), use_ntk=False, on_the_fly=False, mode="complex")
        close(fitted(make(), hamiltonian), expected, 1e-9)


def test_bad_input(nk):
    with plain():
        hamiltonian, whole, _ = states(nk)
        other = nk.operator.Ising(nk.hilbert.Spin(0.5, 5), nk.graph.Chain(5), h=1.0)
        with pytest.raises(ValueError, match="Give both the same Hilbert space"):
            vmc.from_netket(whole, other)
        with pytest.raises(ValueError, match="vstate must be an MCState or a FullSumState"):
            vmc.from_netket(3, hamiltonian)
        with pytest.raises(ValueError, match="hamiltonian must be an operator of NetKet"):
            vmc.from_netket(whole, jnp.eye(4))
        with pytest.raises(ValueError, match=r"one of pullback\.inverse"):
            vmc.netket_preconditioner(0.01)


def test_what_a_preconditioner_and_a_full_sum_do_not_take_is_refused(nk):
    """Complex parameters, of which NetKet's gradient has another factor; complex elements."""
    with plain():
        hilbert = nk.hilbert.Spin(0.5, 4)
        model = nk.models.RBM(alpha=1, param_dtype=complex)
        state = nk.vqs.FullSumState(hilbert, model, seed=0)
        hamiltonian = nk.operator.Ising(hilbert, nk.graph.Chain(4), h=1.0)
        _, gradient = state.expect_and_grad(hamiltonian)
        with pytest.raises(ValueError, match=r"takes real parameters.*or use from_netket"):
            vmc.netket_preconditioner()(state, gradient)
        turned = nk.operator.spin.sigmay(hilbert, 0) + nk.operator.spin.sigmaz(hilbert, 1)
        with pytest.raises(ValueError, match="complex elements, which a full sum does not take"):
            vmc.from_netket(state, turned)
