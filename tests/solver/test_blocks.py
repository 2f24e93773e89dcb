"""The diagonal blocks of G, each inverted exactly, against dense NumPy."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import flat, normal
from jax.flatten_util import ravel_pytree

import pullback as pb
from pullback.solver import Blocks

X, Y = normal(8, 3, seed=1), normal(8, 2, seed=2)
PARAMS = {
    "first": {"w": normal(3, 5, seed=3), "b": normal(5, seed=4)},
    "second": {"w": normal(5, 2, seed=5), "b": normal(2, seed=6), "name": "head", "count": 3},
}
LAYERS = (np.arange(20), np.arange(20, 32))
INVERSES = {
    "tikhonov": pb.Tikhonov(0.01),
    "moore-penrose": pb.MoorePenrose(),
    "cut-off": pb.MoorePenrose(rtol=0.1),
    # The last layer has pairs of singular values: one cannot be taken from two.
    "truncated": pb.TruncatedRank(2),
}
INNER = {
    "auto": pb.solver.Auto(),
    "primal": pb.solver.Primal(),
    "dual": pb.solver.Dual(),
}


def model(p, x):
    h = jnp.tanh(x @ p["first"]["w"] + p["first"]["b"][None])
    return h @ p["second"]["w"] + p["second"]["b"][None]


PROBLEM = pb.Composite(model, lambda z, y: jnp.sum((z - y) ** 2, axis=1) / 2)


def dense():
    """A and r of the problem, in the order of the flat vector."""
    moving, rest = eqx.partition(PARAMS, eqx.is_array)
    vector, unravel = ravel_pytree(moving)
    outputs = lambda v: model(eqx.combine(unravel(v), rest), X).ravel()
    a = np.asarray(jax.jacrev(outputs)(vector)) / np.sqrt(8)
    return a, np.asarray((model(PARAMS, X) - Y).ravel()) / np.sqrt(8)


def inverted(a, inverse):
    """h(AᵀA), dense."""
    _, s, vt = np.linalg.svd(a, full_matrices=True)
    s = np.concatenate([s, np.zeros(a.shape[1] - s.size)])
    square = np.maximum(s, 1e-100) ** 2
    if inverse.damping is not None:
        h = 1 / (s**2 + inverse.damping)
    elif isinstance(inverse, pb.TruncatedRank):
        h = np.where(np.arange(s.size) < 2, 1 / square, 0.0)
    else:
        rtol = 1e-13 if inverse.rtol is None else inverse.rtol
        h = np.where(s > rtol * s[0], 1 / square, 0.0)
    return vt.T @ (h[:, None] * vt)


def expected(inverse, a, g, blocks=LAYERS):
    delta = np.zeros(g.size)
    for block in blocks:
        delta[block] = inverted(a[:, block], inverse) @ g[block]
    return delta


def close(found, wanted, tolerance=1e-9):
    assert np.linalg.norm(flat(found) - wanted) <= tolerance * np.linalg.norm(wanted)


def solve(inverse, solver, **options):
    return pb.natural_gradient(PROBLEM, PARAMS, (X, Y), inverse=inverse, solver=solver, **options)


@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("inverse", INVERSES)
def test_each_block_is_inverted_exactly(inverse, inner):
    a, r = dense()
    ng = solve(INVERSES[inverse], Blocks(inner=INNER[inner]))
    assert ng.result == pb.RESULTS.successful and float(ng.stats.residual) < 1e-9
    close(ng.vector, expected(INVERSES[inverse], a, a.T @ r))
    assert ng.stats.blocks == 2 and ng.stats.solver == "Blocks"
    assert bool(jnp.isnan(ng.stats.tangent_share))


def test_a_matrix_free_solver_for_each_block():
    a, r = dense()
    ng = solve(pb.Tikhonov(0.01), Blocks(inner=pb.solver.Krylov()))
    close(ng.vector, expected(pb.Tikhonov(0.01), a, a.T @ r), 1e-7)
    assert int(ng.stats.rank) == -1 and bool(jnp.isnan(ng.stats.largest))


def test_rank_and_spectrum_are_those_of_the_blocks():
    a, _ = dense()
    stats = solve(pb.MoorePenrose(), Blocks()).stats
    spectra = [np.linalg.svd(a[:, block], compute_uv=False) for block in LAYERS]
    ranks = [np.linalg.matrix_rank(a[:, block]) for block in LAYERS]
    assert int(stats.rank) == sum(ranks)
    kept = [s[:rank] for s, rank in zip(spectra, ranks, strict=True)]
    worst = max(kept, key=lambda s: s[0] / s[-1])
    assert float(stats.condition) == pytest.approx(worst[0] / worst[-1], rel=1e-6)


def test_a_diagonal_gauge_is_cut_into_blocks():
    a, r = dense()
    weights = np.linspace(0.5, 2.0, 32)
    gauge = {
        "first": {"w": weights[5:20].reshape(3, 5), "b": weights[:5]},
        "second": {"w": weights[22:].reshape(5, 2), "b": weights[20:22], "name": None},
    }
    gauge["second"]["count"] = None
    gauge = jax.tree.map(jnp.asarray, gauge)
    ng = solve(pb.Tikhonov(0.01, gauge=gauge), Blocks())
    wanted = np.zeros(32)
    for b in LAYERS:
        wanted[b] = np.linalg.solve(a[:, b].T @ a[:, b] + 0.01 * np.diag(weights[b]), a[:, b].T @ r)
    close(ng.vector, wanted)


def test_a_gauge_that_ties_blocks_together_is_refused():
    gauge = jnp.eye(32) + 0.01
    with pytest.raises(ValueError, match="must be diagonal for solver=Blocks"):
        solve(pb.Tikhonov(0.01, gauge=gauge), Blocks())


def test_a_penalty_and_the_metric_of_another_batch():
    a, r = dense()
    penalty = lambda p: jnp.sum(p["first"]["w"] ** 2) + jnp.sum(p["second"]["b"])
    opt = pb.NaturalGradientDescent(PROBLEM, pb.Tikhonov(0.1), Blocks(), step=1.0, penalty=penalty)
    moved, _, record = opt.step(PARAMS, opt.init(PARAMS), (X, Y))
    gradient = jax.grad(penalty, allow_int=True)(eqx.filter(PARAMS, eqx.is_array))
    g = a.T @ r + flat(gradient)
    delta = expected(pb.Tikhonov(0.1), a, g)
    assert np.allclose(flat(PARAMS) - flat(moved), delta, atol=1e-10)
    cosine, lower = true_cosine(a, g, delta, 0.1), float(record.alignment)
    assert 0 < lower <= cosine + 1e-12
    ng = solve(pb.Tikhonov(0.1), Blocks(), metric_batch=(X,))
    close(ng.vector, expected(pb.Tikhonov(0.1), a, a.T @ r))


def true_cosine(a, g, delta, damping=0.0):
    metric = a.T @ a + damping * np.eye(a.shape[1])
    best = np.linalg.pinv(metric, rcond=1e-12) @ g
    lengths = np.sqrt((delta @ metric @ delta) * (best @ metric @ best))
    return delta @ metric @ best / lengths


@pytest.mark.parametrize("damping", [0.0, 1e-6, 1e-2, 1.0, 100.0])
def test_the_alignment_is_a_lower_bound_and_certified_the_cosine(damping):
    a, r = dense()
    inverse = pb.Tikhonov(damping) if damping else pb.MoorePenrose()
    cosine = true_cosine(a, a.T @ r, expected(inverse, a, a.T @ r), damping)
    lower = float(solve(inverse, Blocks()).stats.alignment)
    assert 0 < lower <= cosine + 1e-12
    if damping in (0.0, 100.0):
        # The Jacobian is onto; so strong a damping makes every method the gradient.
        assert lower == pytest.approx(cosine, rel=0.02)
    exact = float(solve(inverse, Blocks(certify=True)).stats.alignment)
    assert exact == pytest.approx(cosine, rel=1e-8)


def test_its_square_is_the_fraction_of_the_predicted_decrease():
    a, r = dense()
    ng = solve(pb.MoorePenrose(), Blocks(certify=True))
    delta, g = flat(ng.vector), a.T @ r
    # The best step along δ decreases the quadratic model by (gᵀδ)²/2‖Aδ‖².
    along, best = (g @ delta) ** 2 / np.sum((a @ delta) ** 2), g @ np.linalg.pinv(a.T @ a) @ g
    assert float(ng.stats.alignment) ** 2 == pytest.approx(along / best, rel=1e-8)


def test_the_alignment_where_nothing_is_known_of_it():
    for inverse in (pb.TruncatedRank(2), pb.MoorePenrose(rtol=0.1)):
        assert bool(jnp.isnan(solve(inverse, Blocks()).stats.alignment))
        assert 0 < float(solve(inverse, Blocks(certify=True)).stats.alignment) <= 1
    assert float(solve(pb.MoorePenrose(), pb.solver.SVD()).stats.alignment) == 1.0
    flat_loss = pb.Composite(model, lambda z, y: 0.0 * jnp.sum(z, axis=1))
    ng = pb.natural_gradient(flat_loss, PARAMS, (X, Y), solver=Blocks())
    assert float(ng.stats.alignment) == 1.0 and np.all(flat(ng.vector) == 0)


def test_one_block_is_the_natural_gradient():
    ng = solve(pb.Tikhonov(0.01), Blocks(lambda path: "all"))
    close(ng.vector, flat(solve(pb.Tikhonov(0.01), pb.solver.SVD()).vector))
    assert ng.stats.blocks == 1


class Off(pb.solver.AbstractFactors):
    """Factors whose solutions are 1 % too long if they have 12 entries."""

    inner: pb.solver.AbstractFactors

    @property
    def spectrum(self):
        return self.inner.spectrum

    def solve_lifted(self, r):
        found = self.inner.solve_lifted(r)
        return 1.01 * found if found.size == 12 else found

    def solve_covector(self, g):
        return self.inner.solve_covector(g)


class OffSolver(pb.solver.AbstractSolver):
    def check(self, inverse):
        pass

    def factorise(self, rows, inverse):
        return Off(pb.solver.SVD().factorise(rows, inverse))


def test_one_wrong_block_is_seen():
    ng = solve(pb.Tikhonov(0.01), Blocks(inner=OffSolver()), throw=False)
    assert ng.result == pb.RESULTS.unconverged
    assert float(ng.stats.residual) == pytest.approx(0.01, rel=0.1)


class Undeclared(pb.solver.AbstractSolver):
    """A solver that inverts blocks, and does not say so."""

    def check(self, inverse):
        pass

    def factorise(self, rows, inverse):
        return Blocks().factorise(rows, inverse)


def test_blocks_must_be_declared():
    with pytest.raises(ValueError, match="declares `inverts_blocks`, which is False"):
        solve(pb.Tikhonov(0.01), Undeclared())


def test_the_derivative_is_that_of_the_blocks():
    inverse, v = pb.Tikhonov(0.3), jax.tree.map(lambda x: jnp.cos(x) + 0.2, PARAMS["first"])

    def vector(t, solver):
        params = PARAMS | {"first": jax.tree.map(lambda x, d: x + t * d, PARAMS["first"], v)}
        ng = pb.natural_gradient(PROBLEM, params, (X, Y), inverse=inverse, solver=solver)
        return ravel_pytree(ng.vector)[0]

    along = lambda t: vector(t, Blocks())
    found = jax.jvp(along, (jnp.zeros(()),), (jnp.ones(()),))[1]
    h = 1e-5
    differences = (along(jnp.asarray(h)) - along(jnp.asarray(-h))) / (2 * h)
    close(found, flat(differences), 1e-8)


# ---- which blocks -------------------------------------------------------------------------------


def test_blocks_by_a_function_and_by_beginnings_of_paths():
    a, r = dense()
    inverse, g = pb.Tikhonov(0.01), a.T @ r
    # Dictionaries are in the order of their keys: b before w.
    leaves = (np.arange(5), np.arange(5, 20), np.arange(20, 22), np.arange(22, 32))
    close(solve(inverse, Blocks(lambda path: path)).vector, expected(inverse, a, g, leaves))
    kinds = (np.r_[leaves[0], leaves[2]], np.r_[leaves[1], leaves[3]])
    by_kind = lambda path: path.split("'")[-2]
    close(solve(inverse, Blocks(by_kind)).vector, expected(inverse, a, g, kinds))
    mixed = Blocks(["['first']", "['second']", "['second']['b']"])
    wanted = (LAYERS[0], leaves[2], leaves[3])
    close(solve(inverse, mixed).vector, expected(inverse, a, g, wanted))


@pytest.mark.parametrize(
    ("blocks", "words"),
    [
        ("first", r"Blocks\(blocks='first'\): blocks must be a function from path to name"),
        ([], "a list of beginnings of paths"),
        ([1], "a list of beginnings of paths"),
    ],
)
def test_bad_blocks_are_refused_at_once(blocks, words):
    with pytest.raises(ValueError, match=words):
        Blocks(blocks)


@pytest.mark.parametrize(
    ("blocks", "words"),
    [
        (["['first']"], r"begins with none"),
        (["['first']", "['second']", "['third']"], r"none begins with \"\['third'\]\""),
        (lambda path: 3, r"it returned 3"),
    ],
)
def test_blocks_that_do_not_fit_are_refused(blocks, words):
    with pytest.raises(ValueError, match=words):
        solve(pb.Tikhonov(0.01), Blocks(blocks))


def test_a_flat_tree_has_no_layers():
    problem = pb.Composite(lambda p, x: x @ p["w"] + p["b"], lambda z, y: (z - y) ** 2)
    params, batch = {"w": jnp.ones(3), "b": jnp.ones(())}, (X, Y[:, 0])
    with pytest.raises(ValueError, match="lie side by side, and would be one block"):
        pb.natural_gradient(problem, params, batch, solver=Blocks())
    ng = pb.natural_gradient(problem, params, batch, solver=Blocks(lambda path: path))
    assert ng.stats.blocks == 2
    # A single leaf is one block.
    alone = pb.Composite(lambda p, x: x @ p, lambda z, y: (z - y) ** 2)
    assert pb.natural_gradient(alone, jnp.ones(3), batch, solver=Blocks()).stats.blocks == 1


@pytest.mark.parametrize("options", [{"inner": Blocks()}, {"inner": 3}, {"certify": 1}])
def test_bad_options_are_refused(options):
    with pytest.raises(ValueError, match=rf"Blocks\({next(iter(options))}="):
        Blocks(**options)


# ---- models -------------------------------------------------------------------------------------


def test_an_equinox_network_that_saturates():
    net = eqx.nn.MLP(3, 4, 6, 2, key=jax.random.key(0))
    net = eqx.tree_at(lambda n: n.layers[-1].bias, net, jnp.asarray([40.0, 0.0, -40.0, 0.0]))
    problem = pb.Composite(lambda n, x: jax.vmap(n)(x), metric=pb.metric.Categorical())
    labels = jnp.arange(8) % 4
    for inverse in (pb.Tikhonov(1e-3), pb.MoorePenrose()):
        ng = pb.natural_gradient(problem, net, (X, labels), inverse=inverse, solver=Blocks())
        assert ng.result == pb.RESULTS.successful and ng.stats.blocks == 3
        for number, layer in enumerate(net.layers):
            # The block alone, the others constants of the model.
            put = lambda part, x, i=number: jax.vmap(eqx.tree_at(lambda n: n.layers[i], net, part))(
                x
            )
            alone = pb.Composite(put, metric=pb.metric.Categorical())
            other = pb.natural_gradient(alone, layer, (X, labels), inverse=inverse)
            close(ng.vector.layers[number], flat(other.vector), 1e-7)


def test_a_coupled_model_and_one_without_data():
    def mixed(p, x):
        h = jnp.tanh(x @ p["a"]["w"])
        return (h - jnp.mean(h, axis=0)[None]) @ p["b"]["w"]

    params = {"a": {"w": normal(3, 4, seed=7)}, "b": {"w": normal(4, 2, seed=8)}}
    loss = lambda z, y: jnp.sum((z - y) ** 2, axis=1) / 2
    coupled = pb.Composite(mixed, loss, coupled=True)
    fixed = pb.Composite(lambda p: mixed(p, X), lambda z: jnp.sum((z - Y) ** 2) / 2)
    for problem, batch, scale in ((coupled, (X, Y), 8), (fixed, None, 1)):
        ng = pb.natural_gradient(problem, params, batch, inverse=pb.Tikhonov(0.1), solver=Blocks())
        vector, unravel = ravel_pytree(params)
        j = np.asarray(jax.jacrev(lambda v, u=unravel: mixed(u(v), X).ravel())(vector))
        a, r = j / np.sqrt(scale), np.asarray((mixed(params, X) - Y).ravel()) / np.sqrt(scale)
        layers = (np.arange(12), np.arange(12, 20))
        close(ng.vector, expected(pb.Tikhonov(0.1), a, a.T @ r, layers))


# ---- where G itself is needed -------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda: pb.pullback(PROBLEM, PARAMS, (X, Y), solver=Blocks()),
        lambda: pb.pullback(PROBLEM, PARAMS, (X, Y)).rank(solver=Blocks()),
        lambda: pb.NaturalFlow(solver=Blocks()),
        lambda: pb.natural_ntk(PROBLEM, PARAMS, (X, Y), solver=Blocks()),
        lambda: one_step(momentum=pb.Spring(0.5)),
        lambda: one_step(step=pb.step.Geodesic(pb.step.Fixed(0.1))),
        lambda: solve(pb.Tikhonov(0.1), pb.solver.Mixed(Blocks())),
    ],
)
def test_what_needs_the_metric_itself_is_refused(call):
    with pytest.raises(ValueError, match="blocks"):
        call()


def one_step(**options):
    opt = pb.NaturalGradientDescent(PROBLEM, solver=Blocks(), **options)
    return opt.step(PARAMS, opt.init(PARAMS), (X, Y))


@pytest.mark.parametrize(
    "options",
    [
        {"step": pb.step.LevenbergMarquardt(0.1)},
        {"step": pb.step.LineSearch(), "inverse": pb.Tikhonov(0.01)},
        {"step": pb.step.TrustRegion(0.1)},
        {"step": 0.2, "inverse": pb.Tikhonov(0.1), "momentum": pb.HeavyBall(0.5)},
    ],
)
def test_it_trains_with_every_other_rule(options):
    opt = pb.NaturalGradientDescent(PROBLEM, solver=Blocks(), **options)
    params = {k: {n: x for n, x in v.items() if eqx.is_array(x)} for k, v in PARAMS.items()}
    fit = pb.fit(opt, params, (X, Y), 12)
    history = fit.history
    assert history["loss_after"][-1] < 0.2 * history["loss"][0]
    assert np.all((history["alignment"] > 0) & (history["alignment"] <= 1))


def test_plan_shows_it():
    plan = pb.plan(PROBLEM, PARAMS, (X, Y), solver=Blocks())
    assert plan.chosen == "Blocks" and "its cost is not known" in str(plan)
