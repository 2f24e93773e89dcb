"""`natural_gradient`: structure, dtypes, transformations, one compilation, any framework."""

import subprocess
import sys
import textwrap

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import MODELS, SOLVERS, distance, flat, make_example, normal

import pullback as pb
from pullback import testing


def square(z, y):
    return jnp.sum((z - y) ** 2, axis=1) / 2


def mlp_example(dtype=float, **kwargs):
    function, params = MODELS["tied weights"](3, jax.random.key(0))
    params = jax.tree.map(lambda x: x.astype(dtype), params)
    problem = pb.Composite(function, square, pb.metric.Gaussian(), **kwargs)
    return testing.Example(
        problem, params, (normal(4, 2, dtype=dtype), normal(4, 3, seed=1, dtype=dtype))
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_structure_and_dtype_are_kept(dtype):
    example = mlp_example(dtype)
    ng = pb.natural_gradient(*example)
    assert (
        jax.tree.structure(ng.vector)
        == jax.tree.structure(ng.covector)
        == jax.tree.structure(example.params)
    )
    assert jax.tree.map(lambda x: x.shape, ng.vector) == jax.tree.map(
        lambda x: x.shape, example.params
    )
    assert ng.pushforward.shape == (4, 3)
    kept = jax.tree.leaves(
        (ng.vector, ng.covector, ng.pushforward, ng.value, ng.stats.residual, ng.stats.largest)
    )
    assert {x.dtype for x in kept} == {jnp.dtype(dtype)}


@pytest.mark.parametrize("kind", ["a float64 leaf", "float32 outputs"])
def test_mixed_dtypes_come_back_as_they_were(kind):
    """The rounding of the shorter type is not rank."""
    problem, params, batch = testing.prescribed(3, 6, 5)
    expected = testing.reference_natural_gradient(problem, params, batch)
    params = {
        "a": params[:2],
        "b": params[2:].astype(jnp.float64 if kind == "float32 outputs" else jnp.float32),
    }
    join = lambda p, x: problem.model(
        jnp.concatenate([p["a"].astype(x.dtype), p["b"].astype(x.dtype)]), x
    )
    mixed = pb.Composite(join, problem.loss, problem.metric, problem.measure)
    ng = pb.natural_gradient(mixed, params, jax.tree.map(lambda x: x.astype(jnp.float32), batch))
    assert {name: x.dtype for name, x in ng.vector.items()} == {
        name: x.dtype for name, x in params.items()
    }
    assert int(ng.stats.rank) == expected.rank
    assert distance(np.concatenate([ng.vector["a"], ng.vector["b"]]), expected.vector) < 1e-4


def test_carried_leaves_are_left_alone():
    example = make_example("gaussian", "carried leaves")
    ng = pb.natural_gradient(*example)
    assert (
        ng.vector["kind"] is None and ng.vector["order"] is None and ng.vector["activation"] is None
    )
    assert ng.vector["layers"][1]["steps"] is None
    moved = eqx.apply_updates(example.params, jax.tree.map(jnp.negative, ng.vector))
    assert moved["kind"] == "double" and moved["layers"][1]["steps"] == 3
    assert distance(ng.vector, testing.reference_natural_gradient(*example).vector) < 1e-9


def test_numpy_arrays_are_welcome():
    problem, params, batch = mlp_example()
    as_numpy = jax.tree.map(np.asarray, (params, batch))
    assert (
        distance(
            pb.natural_gradient(problem, *as_numpy).vector,
            pb.natural_gradient(problem, params, batch).vector,
        )
        == 0
    )


def test_what_is_returned_belongs_together():
    example = mlp_example()
    ng, dense = pb.natural_gradient(*example), testing.reference_natural_gradient(*example)
    assert distance(ng.covector, dense.covector) < 1e-13
    assert distance(ng.pushforward, dense.jacobian @ flat(ng.vector)) < 1e-12
    assert abs(float(ng.value) - dense.value) < 1e-14
    assert ng.stats.shape == dense.jacobian.shape
    assert abs(float(ng.stats.largest) - dense.spectrum[0]) < 1e-12
    assert abs(float(ng.stats.smallest) - dense.spectrum[dense.rank - 1]) < 1e-12
    assert float(ng.stats.residual) < 1e-12
    assert f"rank            {dense.rank}" in str(ng.stats)


def test_under_jit_it_is_the_same():
    problem, params, batch = mlp_example()
    inside = eqx.filter_jit(lambda p, b: pb.natural_gradient(problem, p, b))(params, batch)
    assert distance(inside.vector, pb.natural_gradient(problem, params, batch).vector) < 1e-13


@pytest.mark.parametrize("solver", ["svd", "primal", "dual"])
def test_vmap_over_seeds_and_over_batches(solver):
    problem, _, batch = mlp_example()
    step = lambda p, b: pb.natural_gradient(problem, p, b, solver=SOLVERS[solver]).vector
    seeds = [MODELS["tied weights"](3, jax.random.key(i))[1] for i in range(2)]
    batches = [batch, (normal(4, 2, seed=7), normal(4, 3, seed=8))]
    stack = lambda trees: jax.tree.map(lambda *x: jnp.stack(x), *trees)
    found = jax.vmap(step)(stack(seeds), stack(batches))
    for i in range(2):
        expected = testing.reference_natural_gradient(problem, seeds[i], batches[i]).vector
        assert distance(jax.tree.map(lambda x, i=i: x[i], found), expected) < 1e-9


def test_vmap_gives_a_result_for_each():
    problem, params, batch = mlp_example()
    stacked = jax.tree.map(lambda x: jnp.stack([x, x.at[(0,) * x.ndim].set(jnp.nan)]), params)
    results = eqx.filter_vmap(lambda p: pb.natural_gradient(problem, p, batch, throw=False).result)(
        stacked
    )
    assert (results == pb.RESULTS.nonfinite_params).tolist() == [False, True]


@pytest.fixture
def compilations():
    """The list of programs compiled while the test runs."""
    seen, open_ = [], [True]

    def listen(event, duration, **kwargs):
        if open_[0] and event.endswith("backend_compile_duration"):
            seen.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield seen
    open_[0] = False


def test_a_second_call_with_the_same_shapes_does_not_recompile(compilations):
    function, params = MODELS["tied weights"](3, jax.random.key(0))
    traces = []

    def model(p, x):
        traces.append(1)
        return function(p, x)

    problem = pb.Composite(model, square, pb.metric.Gaussian())
    call = lambda seed, damping: jax.block_until_ready(
        pb.natural_gradient(
            problem,
            jax.tree.map(lambda x: x + 0.01 * seed, params),
            (np.asarray(normal(4, 2, seed=seed)), np.asarray(normal(4, 3, seed=seed))),
            inverse=pb.Tikhonov(damping),
        ).vector
    )
    call(0, 0.1)
    assert len(traces) > 1 and compilations
    # Another damping, so that what checks the numbers of an inverse has run, too.
    call(1, 0.15)
    compilations.clear(), traces.clear()
    call(2, 0.2)
    # The model is looked at once for its shapes; nothing is traced to be compiled, and nothing is
    # compiled.
    assert len(traces) <= 1
    assert compilations == []


def test_an_equinox_module_is_filtered():
    module = eqx.nn.MLP(2, 3, 3, 1, activation=jnp.tanh, key=jax.random.key(0))
    batch = (normal(4, 2), normal(4, 3, seed=1))
    problem = pb.Composite(lambda m, x: jax.vmap(m)(x), square, pb.metric.Gaussian())
    ng = pb.natural_gradient(problem, module, batch)
    assert isinstance(ng.vector, eqx.nn.MLP)
    assert jax.tree.structure(ng.vector) == jax.tree.structure(
        eqx.filter(module, eqx.is_inexact_array)
    )
    assert (
        distance(ng.vector, testing.reference_natural_gradient(problem, module, batch).vector)
        < 1e-9
    )
    moved = eqx.apply_updates(module, ng.vector)
    assert jax.vmap(moved)(batch[0]).shape == (4, 3)


def test_a_flax_module_by_its_apply():
    linen = pytest.importorskip("flax.linen")

    class Net(linen.Module):
        @linen.compact
        def __call__(self, x):
            return linen.Dense(3, param_dtype=jnp.float64)(
                jnp.tanh(linen.Dense(3, param_dtype=jnp.float64)(x))
            )

    batch = (normal(4, 2), normal(4, 3, seed=1))
    with jax.numpy_rank_promotion("allow"):
        net = Net()
        variables = net.init(jax.random.key(0), batch[0])
        problem = pb.Composite(net.apply, square, pb.metric.Gaussian())
        ng = pb.natural_gradient(problem, variables, batch)
        expected = testing.reference_natural_gradient(problem, variables, batch)
    assert jax.tree.structure(ng.vector) == jax.tree.structure(variables)
    assert distance(ng.vector, expected.vector) < 1e-9


SHARDED = """
    import jax, jax.numpy as jnp, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
    jax.config.update("jax_enable_x64", True)
    import equinox as eqx
    import pullback as pb
    from pullback import testing

    assert jax.device_count() == 4
    function, params = testing.tanh_mlp(2, 3, WIDTH, jax.random.key(0))
    rng = np.random.default_rng(0)
    batch = jnp.asarray(rng.standard_normal((8, 2))), jnp.asarray(rng.integers(0, 3, 8))
    problem = pb.Composite(function, None, pb.metric.Categorical())
    sharding = NamedSharding(Mesh(np.array(jax.devices()), "samples"), PartitionSpec("samples"))
    for solver in SOLVERS:
        solve = lambda p, b: pb.natural_gradient(problem, p, b, solver=solver)
        step = jax.jit(lambda p, b: eqx.filter(solve(p, b), eqx.is_array))
        alone = step(params, batch)
        split = step(params, jax.device_put(batch, sharding))
        flat = lambda t: np.concatenate([np.ravel(x) for x in jax.tree.leaves(t)])
        gap = np.linalg.norm(flat(split.vector) - flat(alone.vector))
        error = gap / np.linalg.norm(flat(alone.vector))
        print(type(solver).__name__, error)
        assert error < 1e-12, error
    print("done")
"""


@pytest.mark.parametrize(
    ("width", "solvers"), [(4, "[pb.solver.SVD(), pb.solver.Dual()]"), (2, "[pb.solver.Primal()]")]
)
def test_a_sharded_batch_gives_the_answer_of_one_device(width, solvers, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    code = textwrap.dedent(SHARDED).replace("WIDTH", str(width)).replace("SOLVERS", solvers)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0 and run.stdout.endswith("done\n"), run.stdout + run.stderr
