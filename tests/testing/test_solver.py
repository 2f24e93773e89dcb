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
    class Ungauged(pb.solver.AbstractSolver):
        """Right but for the gauge, which it forgets."""

        def check(self, inverse):
            pass

        def factorise(self, metric, inverse):
            plain = eqx.tree_at(lambda i: i.gauge, inverse, None, is_leaf=lambda x: x is None)
            return pb.solver.SVD().factorise(metric, plain)

    with pytest.raises(
        AssertionError, match=r"Ungauged, MoorePenrose in a gauge: lifted\(r\): relative error"
    ):
        testing.check_solver(Ungauged())
