"""The registries of the tests: complete, and without doubles."""

import jax.numpy as jnp
import pytest
from helpers import INVERSES, METRICS, MODELS, SOLVERS

import pullback as pb


def test_the_registry_refuses_a_name_given_twice():
    for registry in (METRICS, SOLVERS, INVERSES, MODELS):
        with pytest.raises(KeyError, match="registered already"):
            registry[next(iter(registry))] = None


def test_every_public_solver_and_inverse_is_registered():
    solvers = {
        x
        for x in vars(pb.solver).values()
        if isinstance(x, type) and issubclass(x, pb.solver.AbstractSolver)
    }
    # In double precision `Mixed` is the solver inside, and `Blocks` inverts another metric: they
    # have tests of their own.
    others = {pb.solver.AbstractSolver, pb.solver.Mixed, pb.solver.Blocks}
    assert {type(x) for x in SOLVERS.values()} == solvers - others
    inverses = {type(make(jnp.ones(2))) for make in INVERSES.values()}
    public = {x for x in vars(pb.inverse).values() if isinstance(x, type)}
    # `Dampable` is never solved with: rules that damp factorise with it.
    assert inverses == public - {pb.inverse.AbstractInverse, pb.inverse.Dampable}
