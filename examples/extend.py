"""A piece of your own, of every kind: each in one class, each compared with a dense reference.

Run it: `python examples/extend.py`. Then come combinations that cannot work, and a solver that
returns wrong numbers: each is refused with the cure, or reported.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve

import pullback as pb

jax.config.update("jax_enable_x64", True)


class Stretched(pb.metric.AbstractMatrixMetric):
    """A metric on the outputs: M(z) = I + z zᵀ."""

    nonsingular = True

    def matrix(self, z):
        return jnp.eye(z.size, dtype=z.dtype) + jnp.outer(z, z)


class Landweber(pb.inverse.AbstractInverse):
    """An inverse: what `steps` gradient steps of length `rate` do to a least-squares problem."""

    steps: int = 50
    rate: float = 0.1
    gauge: None = None

    def filter(self, s, cutoff):
        left = (1 - self.rate * s * s) ** self.steps
        return jnp.where(s > cutoff, (1 - left) / jnp.where(s > cutoff, s * s, 1.0), 0.0)


class CholeskyFactors(pb.solver.AbstractFactors):
    """L with L Lᵀ = G + λ."""

    rows: pb.solver.Rows
    lower: jax.Array
    spectrum: pb.solver.Spectrum

    def solve_covector(self, g):
        return cho_solve((self.lower, True), g)

    def solve_lifted(self, r):
        return self.solve_covector(self.rows.rmv(self.rows.scale * r))


class NormalEquations(pb.solver.AbstractSolver):
    """A solver, with the factors above: the normal equations, for damped inverses."""

    def check(self, inverse):
        if inverse.damping is None:
            raise ValueError("NormalEquations needs a damped inverse: pullback.Tikhonov(1e-3).")

    def factorise(self, rows, inverse):
        lower = jnp.linalg.cholesky(rows.gram() + inverse.damping * jnp.eye(rows.shape[1]))
        return CholeskyFactors(rows, lower, pb.solver.Spectrum.unknown(rows.dtype))


class ColumnNorms(pb.solver.AbstractPreconditioner):
    """A preconditioner on parameters: (diag G + λ)^(-1/2)."""

    def build(self, rows, damping):
        squares = rows.sum_blocks(lambda block: jnp.sum(block**2, axis=0))
        return lambda v: v / jnp.sqrt(squares + damping)


class Polyak(pb.step.AbstractStep):
    """A step rule: as far as the tangent of the loss takes to reach zero, at most 1."""

    def step(self, sub, state):
        d = sub.direction()
        slope = sub.slope(d)
        rate = jnp.minimum(sub.value / jnp.where(slope > 0, slope, 1.0), 1.0)
        return pb.step.move(sub, sub.curve(d), rate), state


class Averaged(pb.AbstractMomentum):
    """A momentum whose memory is not its direction: the mean of all natural gradient steps."""

    def init(self, size, dtype):
        return {"sum": jnp.zeros(size, dtype), "count": jnp.zeros((), jnp.int32)}

    def direction(self, sub, memory):
        return (memory["sum"] - sub.solution) / (memory["count"] + 1).astype(sub.dtype)

    def remember(self, sub, memory, direction):
        return {"sum": memory["sum"] - sub.solution, "count": memory["count"] + 1}


class NormBelow(pb.event.AbstractEvent):
    """An event: the Euclidean norm of the parameters falls to a level."""

    level: float
    description = "the norm of the parameters fell to the level"

    def condition(self, t, params, problem, batch):
        return jnp.log(jnp.linalg.norm(params) / self.level)


class Half(pb.solver.AbstractFactors):
    """Factors that return half of the answer of others."""

    others: pb.solver.AbstractFactors

    @property
    def spectrum(self):
        return self.others.spectrum

    def solve_lifted(self, r):
        return self.others.solve_lifted(r) / 2

    def solve_covector(self, g):
        return self.others.solve_covector(g) / 2


class Lazy(pb.solver.AbstractSolver):
    """A solver that is wrong."""

    def check(self, inverse):
        pass

    def factorise(self, rows, inverse):
        return Half(pb.solver.SVD().factorise(rows, inverse))


def model(params, x):
    return jnp.tanh(x @ params["w"]) @ params["v"]


def squares(z, y):
    return jnp.sum((z - y) ** 2, axis=1) / 2


def error(found, expected):
    """The relative distance of two pytrees."""
    flat = lambda tree: np.concatenate([np.ravel(x) for x in jax.tree.leaves(tree)])
    return np.linalg.norm(flat(found) - flat(expected)) / np.linalg.norm(flat(expected))


def refused(name, call):
    """Print the error of a call that must raise."""
    try:
        call()
    except (ValueError, RuntimeError) as problem:
        words = str(problem).replace("\n", " ")
        print(f"{name:<44}{type(problem).__name__}: {words[:180]}")
    else:
        raise AssertionError(f"{name} was not refused")


def main():
    keys = jax.random.split(jax.random.key(0), 4)
    params = {"w": jax.random.normal(keys[0], (3, 6)), "v": jax.random.normal(keys[1], (6, 2))}
    batch = (jax.random.normal(keys[2], (12, 3)), jax.random.normal(keys[3], (12, 2)))
    problem = pb.Composite(model, squares)
    damped = pb.Tikhonov(1e-3)

    def compare(name, problem, **options):
        found = pb.natural_gradient(problem, params, batch, **options)
        inverse = options.get("inverse")
        dense = pb.testing.reference_natural_gradient(problem, params, batch, inverse)
        print(f"{name:<44}error {error(found.vector, dense.vector):.1e}")

    print("Right: each piece against the dense reference")
    pb.testing.check_metric(Stretched(), jnp.ones(2))
    compare("metric Stretched", pb.Composite(model, squares, Stretched()))
    pb.testing.check_inverse(Landweber())
    for solver in (pb.solver.SVD(), pb.solver.Dual(), pb.solver.Primal(), pb.solver.Auto()):
        name = f"inverse Landweber, {type(solver).__name__}"
        compare(name, problem, inverse=Landweber(), solver=solver)
    pb.testing.check_solver(NormalEquations())
    compare("solver NormalEquations", problem, inverse=damped, solver=NormalEquations())
    pb.testing.check_preconditioner(ColumnNorms())
    krylov = pb.solver.Krylov(preconditioner=ColumnNorms())
    compare("preconditioner ColumnNorms", problem, inverse=damped, solver=krylov)

    pb.testing.check_step(Polyak())
    opt = pb.NaturalGradientDescent(problem, step=Polyak())
    moved, _, record = opt.step(params, opt.init(params), batch)
    dense = pb.testing.reference_natural_gradient(problem, params, batch)
    pairing = sum(
        np.vdot(g, v)
        for g, v in zip(jax.tree.leaves(dense.covector), jax.tree.leaves(dense.vector), strict=True)
    )
    rate = min(dense.value / pairing, 1.0)
    expected = jax.tree.map(lambda p, v: p - rate * v, params, dense.vector)
    print(f"{'step rule Polyak':<44}error {error(moved, expected):.1e}, rate {record.rate:.3f}")

    pb.testing.check_momentum(Averaged())
    opt = pb.NaturalGradientDescent(problem, step=0.1, momentum=Averaged())
    moved, state, _ = opt.step(params, opt.init(params), batch)
    moved, state, _ = opt.step(moved, state, batch)
    one = jax.tree.map(lambda p, v: p - 0.1 * v, params, dense.vector)
    other = pb.testing.reference_natural_gradient(problem, one, batch).vector
    both = lambda p, v, w: p - 0.05 * (v + w)
    expected = jax.tree.map(both, one, dense.vector, other)
    print(f"{'momentum Averaged, two steps':<44}error {error(moved, expected):.1e}")

    # The natural gradient flow of ‖θ‖²/2 is θ(t) = θ(0) e^-t.
    start = jnp.asarray([3.0, 4.0])
    quadratic = pb.Composite(lambda p: p, lambda z: jnp.sum(z**2) / 2)
    stopped = pb.flow(quadratic, start, t1=9.0, events=[NormBelow(1.0)])
    print(f"{'event NormBelow':<44}error {abs(float(stopped.t) - np.log(5.0)):.1e}")

    print("\nRefused, or reported")
    solve = lambda **options: pb.natural_gradient(problem, params, batch, **options)
    refused("Landweber with Krylov", lambda: solve(inverse=Landweber(), solver=pb.solver.Krylov()))
    refused("MoorePenrose with NormalEquations", lambda: solve(solver=NormalEquations()))
    refused("a filter that is negative", lambda: solve(inverse=Landweber(rate=-0.1)))
    descend = lambda **options: pb.NaturalGradientDescent(problem, **options)
    damping = pb.step.LevenbergMarquardt()
    refused("a rule that damps Landweber", lambda: descend(inverse=Landweber(), step=damping))
    lazy = descend(solver=Lazy(), step=damping)
    refused("a rule that damps Half", lambda: lazy.step(params, lazy.init(params), batch))
    refused("a solver that is wrong by half", lambda: solve(solver=Lazy()))
    found = solve(solver=Lazy(), throw=False)
    print(
        f"{'... with throw=False':<44}residual {found.stats.residual:.2f}, not successful:", end=""
    )
    print(f" {not bool(found.result == pb.RESULTS.successful)}")


if __name__ == "__main__":
    main()
