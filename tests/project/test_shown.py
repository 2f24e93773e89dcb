"""How every public class prints: in one line with its numbers, single, traced and in batches.

Printing compiles nothing, and a table is plain HTML.
"""

import inspect
import logging
from html.parser import HTMLParser

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from project.test_docs import MODULES, exports

import pullback as pb

X = jax.random.normal(jax.random.key(0), (6, 3))
Y = jnp.sin(jnp.sum(X, axis=1))
PARAMS = {"w": jax.random.normal(jax.random.key(1), (3, 4)), "v": jnp.ones(4)}
BATCH = (X, Y)


def model(params, x):
    return jnp.tanh(x @ params["w"]) @ params["v"]


PROBLEM = pb.Composite(model, lambda z, y: (z - y) ** 2 / 2)
MEAN = pb.metric.Euclidean()
OPT = pb.NaturalGradientDescent(PROBLEM, step=pb.step.LevenbergMarquardt())
BLOCKS = pb.BlockDescent(PROBLEM, lambda path: path, damping=0.1)
BOX = pb.constraint.Clipping(-9.0, 9.0)
FLOW = {"t1": 0.1, "ts": [0.1], "kind": pb.EuclideanFlow()}


LATTICE = pb.vmc.Lattice((4,))
ENERGY = pb.vmc.problem(lambda p, spins: spins @ p, pb.vmc.ising(LATTICE, 1.0))
CHAINS = pb.vmc.Metropolis(ENERGY, chains=8)
CONVEX = pb.Composite(lambda p: p["v"], lambda z: jnp.sum(z**2))


def identity(x):
    return x


def fitted():
    return pb.fit(OPT, PARAMS, BATCH, 12, progress=False)


# What a user computes: name of the class -> a function that computes one.
COMPUTED = {
    "NaturalGradient": lambda: pb.natural_gradient(PROBLEM, PARAMS, BATCH),
    "Stats": lambda: pb.natural_gradient(PROBLEM, PARAMS, BATCH).stats,
    "PullbackMetric": lambda: pb.pullback(PROBLEM, PARAMS, BATCH),
    "Factorised": lambda: pb.pullback(PROBLEM, PARAMS, BATCH).factorise(),
    "Rows": lambda: pb.pullback(PROBLEM, PARAMS, BATCH).whitened,
    "Places": lambda: pb.pullback(PROBLEM, PARAMS, BATCH).factorise().factors.places,
    "Spectrum": lambda: pb.pullback(PROBLEM, PARAMS, BATCH).factorise().spectrum,
    "TangentKernel": lambda: pb.natural_ntk(PROBLEM, PARAMS, BATCH),
    "Subproblem": lambda: pb.natural_ntk(PROBLEM, PARAMS, BATCH).subproblem,
    "Examination": lambda: pb.examine(PROBLEM, PARAMS, BATCH, nearby=1),
    "Meeting": lambda: pb.examine(PROBLEM, PARAMS, BATCH, nearby=1, other=PARAMS).meeting,
    "Plan": lambda: pb.plan(PROBLEM, PARAMS, BATCH),
    "Route": lambda: pb.plan(PROBLEM, PARAMS, BATCH).route,
    "Invariance": lambda: pb.check_invariance(
        PROBLEM, PARAMS, BATCH, reparametrisation=pb.Units(60.0), halvings=2, counts=()
    ),
    "Distance": lambda: pb.distance(PROBLEM, PARAMS, [PARAMS] * 3, BATCH),
    "NaturalGradientDescent": lambda: OPT,
    "DescentState": lambda: OPT.init(PARAMS),
    "Record": lambda: OPT.step(PARAMS, OPT.init(PARAMS), BATCH)[2],
    "Move": lambda: pb.step.Move.untried(pb.natural_ntk(PROBLEM, PARAMS, BATCH).subproblem),
    "BlockDescent": lambda: BLOCKS,
    "BlockState": lambda: BLOCKS.init(PARAMS),
    "BlockRecord": lambda: BLOCKS.step(PARAMS, BLOCKS.init(PARAMS), BATCH)[2],
    "OptaxState": lambda: pb.as_optax(OPT).init(PARAMS),
    "Fit": fitted,
    "History": lambda: fitted().history,
    "Report": lambda: pb.Report(1, PARAMS, None, fitted().history),
    "Trajectory": lambda: pb.flow(PROBLEM, PARAMS, BATCH, **FLOW),
    "Inspection": lambda: pb.flow(PROBLEM, PARAMS, BATCH, **FLOW).inspection,
    "ConstrainedStep": lambda: pb.constrained_step(
        PROBLEM, PARAMS, BATCH, step=0.1, constraint=BOX
    ),
    "Jet": lambda: pb.pde.jet(lambda x: x[0] ** 2, jnp.ones(2)),
    "Estimate": lambda: pb.vmc.estimate(ENERGY, jnp.ones(4), pb.vmc.full_sum(ENERGY)),
    "Chains": lambda: CHAINS.init(jax.random.key(0), jnp.ones(4)),
    "ProximalStep": lambda: pb.proximal_step(PROBLEM, PARAMS, BATCH, weight=100.0),
}
# What a user builds.
BUILT = [
    PROBLEM,
    pb.TangentVector(PARAMS),
    pb.CotangentVector(PARAMS),
    pb.Checkpoints("run"),
    pb.minibatches(BATCH, 3),
    pb.Epochs(1),
    pb.pde.Equation("small", "Poisson, 1-D", identity, identity, (1, 12, 1), 40, 10),
    LATTICE,
    LATTICE.symmetries(),
    pb.vmc.ising(LATTICE, 1.0),
    pb.vmc.Born(),
    CHAINS,
    pb.vmc.NetKetPreconditioner(pb.Tikhonov(0.1), None),
    pb.pde.Box([0.0], [1.0]),
    pb.pde.ByResidual(),
    pb.pde.Condition(identity, 10),
    pb.pde.Data(jnp.ones((2, 1)), jnp.ones(2)),
    pb.pde.Dirichlet(0.0, 10),
    pb.pde.Domain(None, evolution=False),
    pb.pde.Initial(0.0, 10),
    pb.pde.Neumann(0.0, 10),
    pb.pde.Periodic(0, 10),
    pb.Mean(),
    pb.Sum(),
    pb.Weights(jnp.ones(40)),
    pb.Time(),
    pb.LogTime(),
    pb.MetricControl(0.1),
    pb.NaturalFlow(pb.Tikhonov(0.1)),
    pb.EuclideanFlow(),
    pb.NewtonFlow(),
    pb.EuclideanMirror(),
    pb.KLMirror(),
    pb.ReverseKLMirror(),
    pb.BregmanMirror(identity),
    pb.DivergenceMirror(identity),
    pb.Affine(jnp.eye(16)),
    pb.Cubic(jnp.zeros(16)),
    pb.Exponential(),
    pb.Reparametrisation(identity),
    pb.Units(60.0),
    pb.random_reparametrisation(PARAMS, jax.random.key(0)),
    pb.MoorePenrose(),
    pb.Tikhonov(jnp.asarray(0.25)),
    pb.TruncatedRank(3),
    pb.inverse.Dampable(pb.MoorePenrose()),
    pb.Terms(fit=PROBLEM),
    pb.weights.ByGradientNorm(),
    pb.weights.ByTrace(0.5),
    pb.HeavyBall(0.9),
    pb.Spring(0.9),
    pb.MetricMemory(0.9),
    pb.Stateful(PARAMS, {"mean": jnp.zeros(3)}),
    pb.until.LossBelow(0.1),
    pb.until.Below("norm", 0.1),
    pb.until.GradientBelow(0.1),
    pb.until.Plateau(),
    pb.until.Stuck(),
    pb.until.When(identity, "it is"),
    pb.step.Fixed(0.5),
    pb.step.LineSearch(),
    pb.step.GridSearch(),
    pb.step.DampingSearch(),
    pb.step.TrustRegion(),
    pb.step.LevenbergMarquardt(),
    pb.step.Geodesic(pb.step.LevenbergMarquardt()),
    pb.solver.Auto(),
    pb.solver.SVD(),
    pb.solver.Dual(),
    pb.solver.Primal(),
    pb.solver.Mixed(),
    pb.solver.Krylov(preconditioner=pb.solver.Diagonal()),
    pb.solver.Kronecker(),
    pb.solver.SampleBlocks(),
    pb.solver.Nystrom(10),
    pb.solver.Blocks(),
    pb.solver.Cost(1.0, 2.0),
    pb.event.LossBelow(0.1),
    pb.event.GradientBelow(0.1),
    pb.event.When(identity),
    pb.event.RankChange(),
    pb.constraint.Simplex(),
    pb.constraint.PositiveDefinite(),
    pb.constraint.Clipping(0.0, 1.0),
    pb.constraint.At(identity, pb.constraint.Simplex()),
    pb.constraint.Penalty(pb.constraint.Simplex(), jnp.asarray(3.0)),
    MEAN,
    pb.metric.Bernoulli(),
    pb.metric.Categorical(),
    pb.metric.Poisson(),
    pb.metric.Gaussian(jnp.asarray(2.0)),
    pb.metric.Bregman(identity),
    pb.metric.Divergence(identity),
    pb.metric.EmpiricalFisher(identity),
    pb.metric.ExponentialFamily(identity),
    pb.metric.GaussianMeanCovariance(),
    pb.metric.GaussianMeanScale(),
    pb.metric.Likelihood(identity, jnp.arange(6.0)),
    pb.metric.LossHessian(identity),
    pb.metric.FubiniStudy(),
    pb.metric.Masked(MEAN, jnp.ones(30, bool)),
    pb.metric.Product((MEAN, MEAN)),
    pb.metric.Riemannian(identity),
    pb.metric.SampledFisher(pb.metric.Categorical(), jax.random.key(0)),
    pb.metric.Sum((MEAN, MEAN)),
    pb.metric.Weighted(MEAN, jnp.asarray(3.0)),
    pb.metric.WassersteinGaussian(),
    pb.metric.WassersteinGaussianCovariance(),
]
# Errors and warnings, protocols, types that only annotate, enumerations, closed forms that print as
# the functions that they are, pieces that a solver of one's own handles.
OTHERS = frozenset(
    "FitError FitWarning PrecisionWarning Optimiser RESULTS Choice Setting ProductLikelihood "
    "WassersteinGraph LogarithmicMean ArithmeticMean Absolute Clip Refuse Scores Diagonal Logistic "
    "MatrixProduct Conditions Block Example RandomFilter Model Reference FromNetKet".split()
)


class Structure(HTMLParser):
    """Opens and closes the tags of a page, and keeps their names."""

    def __init__(self, page):
        super().__init__()
        self.open, self.names = [], set()
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.names.add(tag)
        assert all(name == "style" for name, _ in attrs)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def check_texts(thing, longest=260):
    line = repr(thing)
    assert "\n" not in line and len(line) <= longest and " at 0x" not in line, line
    assert line.startswith(f"{type(thing).__name__}("), line
    assert str(thing)
    if hasattr(thing, "_repr_html_"):
        page = Structure(thing._repr_html_())
        assert page.open == [] and page.names <= {"table", "tr", "th", "td", "p"}
    return line


def test_every_public_class_is_here():
    known = set(COMPUTED) | {type(thing).__name__ for thing in BUILT} | OTHERS
    classes = {
        name: thing
        for module in MODULES
        for name, thing in exports(module).items()
        if inspect.isclass(thing) and not name.startswith("Abstract")
    }
    protocols = {name for name, thing in classes.items() if getattr(thing, "_is_protocol", False)}
    assert set(classes) - known - protocols == set(), "add an example to test_shown.py"


@pytest.mark.parametrize("thing", BUILT, ids=lambda thing: type(thing).__name__)
def test_what_is_built_prints_in_one_line(thing):
    line = check_texts(thing, longest=120)
    if eqx.is_array(getattr(thing, "damping", None)):
        assert "0.25" in line


@pytest.mark.parametrize("name", COMPUTED)
def test_what_is_computed_prints_in_one_line_and_compiles_nothing(name, caplog):
    thing = COMPUTED[name]()
    assert type(thing).__name__ == name
    jax.clear_caches()
    with jax.log_compiles(), caplog.at_level(logging.DEBUG, "jax"):
        check_texts(thing)
    assert [record for record in caplog.records if "ompil" in record.getMessage()] == []


@pytest.mark.parametrize(
    ("name", "method"),
    [("PullbackMetric", "rank"), ("TangentKernel", "matrix"), ("Trajectory", "evaluate")],
)
def test_a_method_without_its_call_prints_on_half_a_page(name, method):
    text = repr(getattr(COMPUTED[name](), method))
    assert name in text and method in text
    assert len(text.splitlines()) <= 25 and "dot_general" not in text


def test_what_a_solver_does_not_compute_is_said_and_no_nan_is_shown():
    inverse = pb.Tikhonov(0.1)
    ng = pb.natural_gradient(PROBLEM, PARAMS, BATCH, inverse=inverse, solver=pb.solver.Dual())
    for text in (str(ng), ng._repr_html_()):
        assert text.count("not computed by this solver") == 2 and "nan" not in text
    assert "condition" in str(pb.natural_gradient(PROBLEM, PARAMS, BATCH, solver=pb.solver.SVD()))


def test_the_count_of_compilations_can_fail(caplog):
    jax.clear_caches()
    with jax.log_compiles(), caplog.at_level(logging.DEBUG, "jax"):
        jnp.sin(jnp.ones(3))
    assert any("ompil" in record.getMessage() for record in caplog.records)


RESULTS = {
    "NaturalGradient": lambda p: pb.natural_gradient(PROBLEM, p, BATCH, throw=False),
    "Stats": lambda p: pb.natural_gradient(PROBLEM, p, BATCH, throw=False).stats,
    "Record": lambda p: OPT.step(p, OPT.init(p), BATCH)[2],
    "BlockRecord": lambda p: BLOCKS.step(p, BLOCKS.init(p), BATCH)[2],
    "BlockState": lambda p: BLOCKS.step(p, BLOCKS.init(p), BATCH)[1],
    "DescentState": lambda p: OPT.step(p, OPT.init(p), BATCH)[1],
    "Trajectory": lambda p: pb.flow(PROBLEM, p, BATCH, throw=False, **FLOW),
    "ProximalStep": lambda p: pb.damped_newton_step(CONVEX, p, weight=9.0, throw=False),
    "ConstrainedStep": lambda p: pb.constrained_step(
        PROBLEM, p, BATCH, step=0.1, constraint=BOX, throw=False
    ),
    "Distance": lambda p: pb.Distance(p["v"][0], p["v"][1], p["v"][2]),
    "PullbackMetric": lambda p: pb.pullback(PROBLEM, p, BATCH),
}


@pytest.mark.parametrize("name", RESULTS)
def test_traced_and_in_batches_it_prints_too(name):
    compute = RESULTS[name]
    lines = []

    def traced(params):
        lines.append(check_texts(compute(params)))
        return 0

    jax.eval_shape(traced, PARAMS)
    bad = jax.tree.map(lambda x: jnp.stack([x, 2 * x, x * jnp.nan]), PARAMS)
    several = eqx.filter_vmap(compute)(bad)
    line = check_texts(several)
    assert "3 results: " in line
    if hasattr(several, "result"):
        assert "2 successful, 1 nonfinite" in line
        assert "traced" in lines[0] or "float64[]" in lines[0]


def test_a_failure_has_its_name_in_the_line_and_its_message_in_the_table():
    bad = jax.tree.map(lambda x: x * jnp.nan, PARAMS)
    ng = pb.natural_gradient(PROBLEM, bad, BATCH, throw=False)
    assert repr(ng).endswith("nonfinite_params)") and "loss nan" in repr(ng)
    assert ng.message == "nonfinite_params: `params` contains a NaN or an infinity."
    assert "contains a NaN" in ng._repr_html_() and "contains a NaN" in str(ng)
    _, _, record = OPT.step(bad, OPT.init(bad), BATCH)
    assert "not taken" in repr(record) and "contains a NaN" in record._repr_html_()


def test_a_record_has_names_instead_of_codes():
    record = OPT.step(PARAMS, OPT.init(PARAMS), BATCH)[2]
    assert "rank 6" in repr(record) and "damping 0.01" in repr(record)
    assert repr(record).endswith(f"{record.solver_name}, successful)")
    page = record._repr_html_()
    assert f">{record.solver_name}<" in page and "cutoff" in page and "nan" not in page


def test_a_history_has_names_instead_of_codes():
    history = fitted().history
    assert set(history.words("result")) == {"successful"}
    assert set(history.words("solver")) <= {"SVD", "Primal", "Dual", "Krylov", "Blocks"}
    assert history.words("accepted")[0] == "True"
    blocks = pb.fit(BLOCKS, PARAMS, BATCH, 3, progress=False).history
    assert set(blocks.words("result")) == {"successful"}
    page = history._repr_html_()
    assert page.count("successful") == 10 and "Columns not shown: metric_norm" in page
    with pytest.raises(KeyError, match="there is no column 'los'; there are step, loss"):
        history.words("los")
    # The codes of another optimiser are its own.
    other = pb.History({"step": np.arange(2), "loss": np.ones(2), "result": np.array([0, 1])})
    assert other.words("result").tolist() == ["0", "1"] and "successful" not in other._repr_html_()


def test_empty_and_nan_histories_print():
    empty = pb.History({})
    assert repr(empty) == "History(0 steps)" and empty._repr_html_() == "<p>History(0 steps)</p>"
    fit = pb.Fit(PARAMS, None, empty, 0, 0.1, "nothing to do")
    assert repr(fit) == "Fit(0 steps, 0.1 s: nothing to do)"
    assert fit._repr_html_() == "<p>Fit(0 steps, 0.1 s: nothing to do)</p>"
    lost = pb.History({"step": np.arange(1), "loss": np.array([np.nan])})
    assert repr(lost) == "History(1 steps, loss nan -> nan)" and "loss" in lost._repr_html_()


def test_a_plan_escapes_its_reason():
    page = pb.plan(PROBLEM, PARAMS, BATCH)._repr_html_()
    assert "&lt;=" in page and "['w']" in page.replace("&#x27;", "'") and "/ gradient" in page
