"""Every contract on our own pieces, and on pieces that break it."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import SOLVERS

import pullback as pb
from pullback import testing
from pullback.testing._reference import dense_gauge, dense_inverse
from pullback.testing._solver import SHAPES, accepts, whitened

FILTERS = 36
FACTORISING = ["svd", "primal", "dual"]
INVERSES = [
    pb.MoorePenrose(),
    pb.MoorePenrose(rtol=0.2),
    pb.Tikhonov(0.02),
    pb.TruncatedRank(2),
    testing.random_filter(7),
]
RULES = [
    pb.step.Fixed(0.3),
    pb.step.LineSearch(),
    pb.step.GridSearch(),
    pb.step.LevenbergMarquardt(),
    pb.step.DampingSearch((1.0, 1e-2, 0.0)),
    pb.step.TrustRegion(),
    pb.step.Geodesic(pb.step.LineSearch()),
]
PRECONDITIONERS = [
    pb.solver.Diagonal(),
    pb.solver.Kronecker(),
    pb.solver.SampleBlocks(),
    pb.solver.Nystrom(2),
]


@pytest.mark.parametrize("inverse", INVERSES, ids=lambda x: type(x).__name__)
def test_inverses_conform(inverse):
    assert len(testing.check_inverse(inverse)) >= 20


@pytest.mark.parametrize("kind", PRECONDITIONERS, ids=lambda x: type(x).__name__)
def test_preconditioners_conform(kind):
    assert len(testing.check_preconditioner(kind)) == 3


@pytest.mark.parametrize("rule", RULES, ids=lambda x: type(x).__name__)
def test_step_rules_conform(rule):
    assert len(testing.check_step(rule)) >= 6


MOMENTA = [
    pb.HeavyBall(0.7),
    pb.Spring(0.7, max_step=0.01, corrected=True),
]


@pytest.mark.parametrize("momentum", MOMENTA, ids=lambda x: type(x).__name__)
def test_momenta_conform(momentum):
    assert len(testing.check_momentum(momentum)) == 2 * len(SHAPES) + 1


def test_a_momentum_whose_memory_depends_on_the_call_is_told():
    calls = []

    class Impure(pb.AbstractMomentum):
        def direction(self, sub, memory):
            calls.append(1)
            return -len(calls) * sub.solution

    with pytest.raises(AssertionError, match=r"Impure, MoorePenrose, .*: the step"):
        testing.check_momentum(Impure())


def test_every_public_piece_is_checked():
    def public(room, base):
        found = (x for x in vars(room).values() if isinstance(x, type) and issubclass(x, base))
        return {x for x in found if not x.__name__.startswith("Abstract")}

    assert {type(x) for x in RULES} == public(pb.step, pb.step.AbstractStep)
    assert {type(x) for x in MOMENTA} == public(pb.momentum, pb.AbstractMomentum)
    kinds = public(pb.solver, pb.solver.AbstractPreconditioner)
    assert {type(x) for x in PRECONDITIONERS} == kinds
    inverses = public(pb.inverse, pb.inverse.AbstractInverse) - {pb.inverse.Dampable}
    assert {type(x) for x in INVERSES} - {testing.RandomFilter} == inverses


def gauge_of(kind, size):
    return None if kind == "euclidean" else jnp.linspace(0.5, 2.0, size)


@pytest.mark.parametrize("gauge", ["euclidean", "gauge"])
@pytest.mark.parametrize("metric", ["euclidean", "bernoulli"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("solver", FACTORISING)
def test_random_filters_agree_with_the_dense_reference(solver, shape, metric, gauge):
    """Smooth, stepped, not monotone, with and without h₀; one program serves them all."""
    rank, rows, size = SHAPES[shape]
    kind = None if metric == "euclidean" else pb.metric.Bernoulli()
    example = testing.prescribed(rank, rows, size, metric=kind)
    a, w = whitened(example), gauge_of(gauge, size)
    root = np.linalg.cholesky(dense_gauge(w, size))
    rng = np.random.default_rng(3)
    r, g = rng.standard_normal(rows), rng.standard_normal(size)
    reference = testing.reference_natural_gradient(*example)

    def everything(inverse):
        metric = pb.pullback(*example)
        factorised = metric.factorise(inverse, SOLVERS[solver])
        ng = pb.natural_gradient(*example, inverse=inverse, solver=SOLVERS[solver], throw=False)
        unit = jnp.asarray(r) / metric.whitened.scale
        return (
            factorised.solve_lifted(unit),
            factorised.solve_covector(jnp.asarray(g)),
            ng.vector,
            ng.result == pb.RESULTS.successful,
        )

    run = eqx.filter_jit(everything)
    for seed in range(FILTERS):
        inverse = testing.random_filter(seed, w)
        matrix = dense_inverse(a, inverse, root).matrix
        lifted, solved, vector, fine = run(inverse)
        pairs = {
            "lifted": (lifted, matrix @ a.T @ r),
            "covector": (solved, matrix @ g),
            "natural gradient": (vector, matrix @ np.asarray(reference.covector)),
        }
        for name, (found, expected) in pairs.items():
            # A filter may be zero on the whole spectrum.
            error, size = np.linalg.norm(found - expected), np.linalg.norm(expected)
            assert error <= 1e-9 * max(size, 1e-3), f"{name}, filter {seed}: {error:.1e}"
        assert bool(fine), f"filter {seed} is not certified"


def test_what_cannot_apply_a_filter_refuses_with_the_cure():
    inverse, example = testing.random_filter(1), testing.prescribed(3, 6, 5)
    with pytest.raises(ValueError, match=r"Krylov.*singular values.*solver=pullback\.solver\.SVD"):
        pb.natural_gradient(*example, inverse=inverse, solver=pb.solver.Krylov())
    for rule in (pb.step.LevenbergMarquardt(), pb.step.DampingSearch()):
        with pytest.raises(ValueError, match="damps a pseudo-inverse"):
            pb.NaturalGradientDescent(example.problem, inverse=inverse, step=rule)


class Wrong(pb.solver.AbstractFactors):
    """The factors of another solver, with something done to their answers."""

    others: pb.solver.AbstractFactors
    change: str = eqx.field(static=True)

    @property
    def spectrum(self):
        return self.others.spectrum

    @property
    def decomposition(self):
        return self.others.decomposition

    @property
    def knows_row_space(self):
        return self.others.knows_row_space

    def project(self, eta):
        return self.others.project(eta)

    def damped(self, damping):
        return Wrong(self.others.damped(damping), self.change)

    def solve_lifted(self, r):
        return self._changed(self.others.solve_lifted(r), r)

    def solve_covector(self, g):
        return self._changed(self.others.solve_covector(g), g)

    def _changed(self, eta, data):
        if self.change == "half":
            return eta / 2
        if self.change == "noise":
            size = jnp.linalg.norm(eta) / np.sqrt(eta.size)
            return size * jax.random.normal(jax.random.key(7), eta.shape, eta.dtype)
        if self.change == "stale":
            return self.others.solve_lifted(jnp.cos(jnp.arange(self.rows)))
        if self.change == "zero":
            return jnp.zeros_like(eta)
        return eta * jnp.nan

    @property
    def rows(self):
        return self.others.scale.shape[0]


class WrongSolver(pb.solver.AbstractSolver):
    change: str = eqx.field(static=True)

    def check(self, inverse):
        pass

    def factorise(self, rows, inverse):
        return Wrong(pb.solver.SVD().factorise(rows, inverse), self.change)


@pytest.mark.parametrize("change", ["half", "noise", "stale", "zero", "nan"])
def test_a_wrong_answer_is_never_called_successful(change):
    for shape in SHAPES.values():
        for inverse in INVERSES:
            example = testing.prescribed(*shape)
            ng = pb.natural_gradient(
                *example, inverse=inverse, solver=WrongSolver(change), throw=False
            )
            what = f"{change}, {type(inverse).__name__}, {shape}: {pb.RESULTS[ng.result]}"
            assert not bool(ng.result == pb.RESULTS.successful), what
            bad = pb.RESULTS.nonfinite_vector if change == "nan" else pb.RESULTS.unconverged
            assert bool(ng.result == bad), what


@pytest.mark.parametrize("rule", RULES[:4], ids=lambda x: type(x).__name__)
def test_a_step_reports_a_wrong_answer(rule):
    example = testing.prescribed(3, 6, 5)
    opt = pb.NaturalGradientDescent(example.problem, solver=WrongSolver("half"), step=rule)
    record = opt.step(example.params, opt.init(example.params), example.batch)[2]
    assert bool(record.result == pb.RESULTS.unconverged)


def test_sharp_and_project_raise_for_a_wrong_answer():
    metric = pb.pullback(*testing.prescribed(3, 6, 5), solver=WrongSolver("half"))
    g, c = metric.pull(jnp.ones(6)), jnp.cos(jnp.arange(6.0))
    for call in (lambda: metric.sharp(g), lambda: metric.project(c)):
        with pytest.raises(RuntimeError, match=r"did not reach the solution.*WrongSolver: "):
            call()
    assert np.all(np.isfinite(metric.sharp(g, throw=False)))


class Filter(pb.inverse.AbstractInverse):
    """A filter given as a function."""

    function: object = eqx.field(static=True)
    h0: float = 0.0
    gauge: None = None

    def filter(self, s, cutoff):
        return self.function(s)

    @property
    def kernel(self):
        return self.h0


@pytest.mark.parametrize(
    ("inverse", "words"),
    [
        (Filter(lambda s: -1 / s**2), "must be finite and not negative"),
        (Filter(lambda s: s * jnp.nan), "must be finite and not negative"),
        (Filter(lambda s: s, -1.0), "kernel is -1.0"),
        (Filter(lambda s: s[:-1]), r"one number per singular value.*got float64 of shape"),
        (Filter(lambda s: jnp.sum(s)), r"one number per singular value.*of shape \(\)"),
        (Filter(lambda s: s > 0), "one number per singular value.*got bool"),
    ],
    ids=["negative", "nan", "kernel", "short", "scalar", "bool"],
)
def test_what_is_no_filter_raises_at_build_time(inverse, words):
    with pytest.raises(ValueError, match=words):
        pb.natural_gradient(*testing.prescribed(3, 6, 5), inverse=inverse)
    with pytest.raises(ValueError, match=words):
        pb.NaturalGradientDescent(testing.prescribed(3, 6, 5).problem, inverse=inverse)


def test_a_filter_that_is_negative_on_this_spectrum_is_reported():
    inverse = Filter(lambda s: s - 0.5)
    for solver in FACTORISING:
        ng = pb.natural_gradient(
            *testing.prescribed(3, 6, 5), inverse=inverse, solver=SOLVERS[solver], throw=False
        )
        assert bool(ng.result == pb.RESULTS.bad_filter)


def test_a_traced_damping_that_is_none_is_reported():
    """Only a number can be checked when the inverse is built."""

    def result(damping):
        inverse = pb.Tikhonov(damping)
        return pb.natural_gradient(*testing.prescribed(3, 6, 5), inverse=inverse, throw=False)

    found = jax.vmap(lambda damping: result(damping).result)(
        jnp.asarray([-1.0, -1e-3, jnp.nan, jnp.inf, 1e-3])
    )
    bad = [True, True, True, True, False]
    np.testing.assert_array_equal(found == pb.RESULTS.bad_filter, bad)
    np.testing.assert_array_equal(found == pb.RESULTS.successful, np.logical_not(bad))


@pytest.mark.parametrize(
    ("declared", "words"),
    [({"damping": 0.1}, "declares damping"), ({"homogeneous": True}, "declares homogeneous"),
     ({"pseudo_inverse": True}, "declares pseudo_inverse")],
    ids=["damping", "homogeneous", "pseudo"],
)  # fmt: skip
def test_a_false_declaration_raises_at_build_time(declared, words):
    false = type("False_", (Filter,), declared)
    with pytest.raises(ValueError, match=words):
        pb.natural_gradient(
            *testing.prescribed(3, 6, 5), inverse=false(lambda s: 1 / (s**2 + 0.5) + s)
        )


class Shifted(pb.solver.AbstractPreconditioner):
    """An action that is symmetric, and positive definite or not."""

    shift: float

    def build(self, rows, damping):
        return lambda v: v * (jnp.arange(v.size, dtype=v.dtype) + self.shift)


def test_a_preconditioner_that_is_not_positive_definite_is_reported():
    example, inverse = testing.prescribed(4, 4, 7), pb.Tikhonov(0.01)
    for shift, code in ((-0.5, "bad_preconditioner"), (1.0, "successful")):
        solver = pb.solver.Krylov(preconditioner=Shifted(shift))
        ng = pb.natural_gradient(*example, inverse=inverse, solver=solver, throw=False)
        assert bool(ng.result == getattr(pb.RESULTS, code)), pb.RESULTS[ng.result]
    with pytest.raises(AssertionError, match="not positive definite"):
        testing.check_preconditioner(Shifted(-0.5))


@pytest.mark.parametrize(
    ("change", "words"),
    [(lambda x: x[:-1], "got shape"), (lambda x: x.astype(jnp.float32), "dtype float32")],
    ids=["shape", "dtype"],
)
def test_factors_of_another_shape_or_dtype_raise(change, words):
    class Odd(pb.solver.AbstractFactors):
        others: pb.solver.AbstractFactors

        @property
        def spectrum(self):
            return self.others.spectrum

        def solve_lifted(self, r):
            return change(self.others.solve_lifted(r))

        def solve_covector(self, g):
            return change(self.others.solve_covector(g))

    class OddSolver(pb.solver.AbstractSolver):
        def check(self, inverse):
            pass

        def factorise(self, rows, inverse):
            return Odd(pb.solver.SVD().factorise(rows, inverse))

    with pytest.raises(ValueError, match=f"OddSolver: solve_lifted.*{words}"):
        pb.natural_gradient(*testing.prescribed(3, 6, 5), solver=OddSolver())


def test_accepting_is_what_check_says():
    assert accepts(pb.solver.SVD(), testing.random_filter(1))
    assert not accepts(pb.solver.Krylov(), testing.random_filter(1))
