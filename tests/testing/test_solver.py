"""`check_solver` on every solver of the registry, and on a wrong one."""

import equinox as eqx
import pytest
from helpers import SOLVERS

import pullback as pb
from pullback import testing

ITERATIVE = ["krylov"]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in ITERATIVE else ()) for name in SOLVERS],
)
def test_solver_conforms(name):
    assert len(testing.check_solver(SOLVERS[name])) >= 6


def test_a_wrong_solver_is_caught():
    class Heavy(pb.solver.AbstractSolver):
        """Right but for the kernel, to which it gives what Tikhonov does not."""

        def check(self, inverse):
            if inverse.damping is None:
                raise ValueError("damped inverses only")

        def factorise(self, rows, inverse):
            factors = pb.solver.SVD().factorise(rows, inverse)
            return eqx.tree_at(lambda f: f.kernel, factors, 2 * factors.kernel)

    with pytest.raises(
        AssertionError, match=r"Heavy, Tikhonov, .*: solve_covector.*not in the range: relative er"
    ):
        testing.check_solver(Heavy())
