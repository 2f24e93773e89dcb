"""Solvers that return wrong answers or make false claims, around the factors of `SVD`."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import pullback as pb
from pullback._natural.subproblem import subproblem
from pullback._problem.validate import validate
from pullback.inverse import Dampable
from pullback.inverse._base import respond
from pullback.solver._strategy import Strategy

SPECTRUM = (1.0, 0.5, 0.2, 0.1)
ROWS, SIZE = 6, 5
LEAST_SQUARES = pb.Composite(
    lambda p, x: x @ p, lambda z, y: (z - y) ** 2 / 2, pb.metric.Euclidean(), pb.Sum()
)


class Own(pb.inverse.AbstractInverse):
    """A filter without declarations, with an h₀ that is not its limit."""

    unit: float | jax.Array = 1.0
    gauge: None = None

    def filter(self, s, cutoff):
        unit = jnp.asarray(self.unit, s.dtype)
        return 1 / unit**2 / (1 + (s / unit) ** 2) ** 2

    @property
    def kernel(self):
        return 0.5 / self.unit**2


INVERSES = {
    "MoorePenrose": lambda unit: pb.MoorePenrose(),
    "Tikhonov": lambda unit: pb.Tikhonov(0.03 * unit**2),
    "TruncatedRank": lambda unit: pb.TruncatedRank(2),
    "rtol": lambda unit: pb.MoorePenrose(rtol=0.3),
    "filter": Own,
}


def parts(spectrum=SPECTRUM, rows=ROWS, size=SIZE, seed=0):
    """Return orthogonal U and V, and A with the given singular values."""
    rng = np.random.default_rng(seed)
    u, v = (np.linalg.qr(rng.standard_normal((n, n)))[0] for n in (rows, size))
    rank = len(spectrum)
    return u, v, (u[:, :rank] * np.asarray(spectrum)) @ v[:, :rank].T


def normal(size, seed=1):
    return np.random.default_rng(seed).standard_normal(size)


class Wrapped(pb.solver.AbstractFactors):
    """Factors whose answers or claims are replaced; `None` where they are not."""

    others: pb.solver.AbstractFactors
    answer: object = eqx.field(static=True, default=None)
    claimed: object = None
    formed: object = None
    claimed_spectrum: pb.solver.Spectrum | None = None
    exact: bool = eqx.field(static=True, default=False)
    hidden: bool = eqx.field(static=True, default=False)
    redamp: object = eqx.field(static=True, default=None)

    @property
    def spectrum(self):
        return self.others.spectrum if self.claimed_spectrum is None else self.claimed_spectrum

    @property
    def decomposition(self):
        if self.hidden:
            return None
        return self.others.decomposition if self.claimed is None else self.claimed

    @property
    def formed_rows(self):
        return self.formed

    @property
    def kernel_exact(self):
        return self.exact

    def damped(self, damping):
        factors = self.others.damped(damping)
        factors = factors if self.redamp is None else self.redamp(self.others, factors)
        return Wrapped(factors, self.answer, exact=self.exact and self.redamp is None)

    def solve_lifted(self, r):
        return self._changed(self.others.solve_lifted(r))

    def solve_covector(self, g):
        return self._changed(self.others.solve_covector(g))

    def project(self, eta):
        return self.others.project(eta)

    def _changed(self, eta):
        return eta if self.answer is None else self.answer(eta)


class Forged(pb.solver.AbstractSolver):
    """A solver given as a function of the rows and the inverse."""

    forge: object = eqx.field(static=True)

    def check(self, inverse):
        pass

    def factorise(self, rows, inverse):
        return self.forge(rows, inverse)


def right(rows, inverse):
    return pb.solver.SVD().factorise(rows, inverse)


def wrapped(**kwargs):
    return Forged(lambda rows, inverse: Wrapped(right(rows, inverse), **kwargs))


def dense(rows):
    return rows.scale[:, None] * rows.unit_rows()


def factors_of(rows, inverse, u, s, vt):
    """Return factors that follow from a decomposition, whether it is one of A or not."""
    h, kept, _ = respond(inverse, s, rows.shape)
    where = lambda f: (f.u, f.s, f.vt, f.h, f.kept)
    return eqx.tree_at(where, right(rows, inverse), (u, s, vt, h, kept))


def lying(change):
    """Return a solver whose decomposition is changed, and its answers with it."""

    def forge(rows, inverse):
        u, s, vt = jnp.linalg.svd(dense(rows), full_matrices=False)
        return factors_of(rows, inverse, *change(u, s, vt))

    return Forged(forge)


U, V, A = parts()
TARGETS = normal(ROWS)
COVECTOR = jnp.asarray(normal(SIZE, seed=2))
"""It has a part outside the range of Aᵀ."""


def problem(x=A, y=TARGETS):
    return LEAST_SQUARES, jnp.zeros(x.shape[1]), (jnp.asarray(x), jnp.asarray(y))


WIDE = problem(parts(rows=4, size=7)[2], normal(4))
"""More parameters than rows: the kernel is not in the span of a thin V."""


def codes(inverse, solver, example=None):
    """Return the results for a lifted covector, and for one with a part outside the range."""
    example = problem() if example is None else example
    g = jnp.asarray(normal(example[1].size, seed=2))
    ng = pb.natural_gradient(*example, inverse=inverse, solver=solver, throw=False)
    validated = LEAST_SQUARES, *validate(*example)
    sub = subproblem(*validated, Strategy(inverse, solver), covector=g)
    return tuple(str(r) for r in (ng.result, sub.judge()[1]))


UNCONVERGED = (str(pb.RESULTS.unconverged),) * 2
SUCCESSFUL = (str(pb.RESULTS.successful),) * 2


class Claimed(pb.solver.AbstractDecomposition):
    """A decomposition with other singular values, or another resolution, than it has."""

    others: pb.solver.AbstractDecomposition
    s: jax.Array
    claimed_resolution: float = 0.0

    @property
    def resolution(self):
        return jnp.asarray(self.claimed_resolution, self.s.dtype)

    def coordinates(self, eta):
        return self.others.coordinates(eta)

    def combine(self, w):
        return self.others.combine(w)


def claiming(claim, response=None):
    """Return a solver that claims another decomposition, and another h if there is a response."""

    def forge(rows, inverse):
        factors = right(rows, inverse)
        if response is not None:
            factors = eqx.tree_at(lambda f: f.h, factors, response(factors))
        return Wrapped(factors, claimed=claim(factors))

    return Forged(forge)


def formed(change):
    """Return a solver that solves with changed rows, and hands them over as those it formed."""

    def forge(rows, inverse):
        made = rows.formed(change(rows.unit_rows()))
        u, s, vt = jnp.linalg.svd(dense_of(made), full_matrices=False)
        return Wrapped(factors_of(rows, inverse, u, s, vt), formed=made, exact=True)

    return Forged(forge)


def dense_of(rows):
    return rows.scale[:, None] * rows.dense


def claiming_spectrum(answer=None, exact=True, **fields):
    """Return a solver that claims another spectrum."""

    def forge(rows, inverse):
        factors = right(rows, inverse)
        spectrum = factors.spectrum
        for name, value in fields.items():
            now = getattr(spectrum, name)
            where = lambda s, name=name: getattr(s, name)
            spectrum = eqx.tree_at(where, spectrum, jnp.asarray(value, now.dtype))
        return Wrapped(factors, answer, claimed_spectrum=spectrum, exact=exact)

    return Forged(forge)


def damped_code(inverse, solver, damping, covector=None):
    """Return the result of a solution from factors that are damped afterwards."""
    example = LEAST_SQUARES, *validate(*problem())
    sub = subproblem(*example, Strategy(Dampable(inverse), solver), covector=covector)
    return str(sub.damped(jnp.asarray(damping)).judge()[1])


class Leaking(Wrapped):
    """Right on the range of A; what of r is outside comes in along a vector of the kernel."""

    outside: jax.Array | None = None
    along: jax.Array | None = None

    def solve_lifted(self, r):
        return self.others.solve_lifted(r) + self.along * jnp.vdot(self.outside, r)
