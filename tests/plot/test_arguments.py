"""Pictures of results draw what was computed, on the axes that are given, and check arguments."""

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.figure
import numpy as np
import pytest

import pullback as pb
from pullback import plot
from pullback.plot._flows import is_early, sampled

START = jnp.asarray([2.0, -1.0, 0.5])
PROBLEM = pb.Composite(lambda p: {"a": p[:2] ** 2, "b": p[2:]}, lambda z: jnp.sum(z["a"] + 1))
QUADRATIC = pb.Composite(lambda p: p, lambda z: jnp.sum(z**2) / 2)


def axes(count=1):
    return matplotlib.figure.Figure().subplots(1, count)


def flowed(problem=QUADRATIC, **options):
    return pb.flow(problem, START, t1=2.0, kind=pb.EuclideanFlow(), **options)


def test_a_trajectory_draws_its_loss_and_the_outputs_that_are_named(tmp_path):
    sol = flowed()
    figure, ax = sol.plot()
    t, loss = ax.lines[0].get_data()
    np.testing.assert_allclose(loss, 5.25 / 2 * np.exp(-2 * t), rtol=1e-4)
    figure, (_, right) = sol.plot(outputs=[0, (2,)])
    assert right.get_legend_handles_labels()[1] == ["z[0]", "z[2]"]
    for line, start in zip(right.lines, (2.0, 0.5), strict=True):
        t, z = line.get_data()
        np.testing.assert_allclose(z, start * np.exp(-t), rtol=1e-3)
        assert t[0] == 0 and t[-1] == 2.0
    figure.savefig(tmp_path / "a.png")
    given = axes(2)
    assert sol.plot(np.int64(1), axes=given)[0] is given[0].figure
    assert len(sol.plot(outputs=range(3))[1][1].lines) == 3
    assert len(sol.plot(outputs=np.arange(2))[1][1].lines) == 2


def test_the_outputs_of_a_tree_have_their_names():
    problem = pb.Composite(PROBLEM.model, lambda z: jnp.sum(z["a"]) + jnp.sum(z["b"] ** 2))
    right = flowed(problem).plot(outputs=(1, 2))[1][1]
    assert right.get_legend_handles_labels()[1] == ["z['a'][1]", "z['b'][0]"]
    with pytest.raises(ValueError, match=r"places from 0 to 2 in the ravelled outputs, e.g. Traj"):
        flowed(problem).plot(outputs=[(0,)])


@pytest.mark.parametrize("bad", [3, -1, [0, 7], [(1, 0)], [(5,)], [(-1,)], "z", [], 0.5, [True]])
def test_outputs_that_are_not_there_are_refused(bad):
    with pytest.raises(ValueError, match=r"outputs must be places from 0 to 2 .* shape \(3,\)"):
        flowed().plot(outputs=bad)


def test_a_trajectory_without_dense_output_or_in_a_batch_cannot_draw_outputs():
    sol = flowed(ts=[1.0])
    assert len(sol.plot()[1].lines) == 1
    with pytest.raises(ValueError, match="no dense output was kept"):
        sol.plot(outputs=[0])
    run = lambda p: pb.flow(QUADRATIC, p, t1=1.0, kind=pb.EuclideanFlow(), ts=[1.0])
    several = eqx.filter_vmap(run)(jnp.stack([START, START]))
    with pytest.raises(ValueError, match="this is a batch of trajectories"):
        several.plot()
    # As the message says.
    one = jax.tree.map(lambda x: x[0] if eqx.is_array(x) else x, several)
    assert len(one.plot()[1].lines) == 1


def test_the_time_is_logarithmic_if_it_happens_early():
    t = np.geomspace(1e-3, 1e5, 50)
    t = np.append(0.0, t)
    early, late = 1 / (1 + t), 1 - t / t[-1]
    assert is_early(t, early) and not is_early(t, late) and not is_early(t[:2], early[:2])
    assert plot.path(t, early)[1].get_xscale() == "log"
    assert plot.path(t, late)[1].get_xscale() == "linear"
    times = sampled(t, early, 9)
    assert times[0] == 0 and times[-1] == t[-1] and np.all(np.diff(times) > 0)
    np.testing.assert_allclose(sampled(t, late, 3), [0, 5e4, 1e5])
    assert not is_early(t, early * np.nan)


def test_a_kernel_draws_its_matrix_and_its_singular_values(tmp_path):
    problem = pb.Composite(lambda p, x: x @ p, lambda z, y: (z - y) ** 2)
    x = jnp.asarray([[1.0, 0.0], [3.0, 1.0], [1.0, 1.0]])
    for kernel in (
        pb.ntk(problem, jnp.ones(2), (x,)),
        pb.natural_ntk(problem, jnp.ones(2), (x,), at=x[:2]),
    ):
        figure, (left, right) = kernel.plot()
        matrix = np.asarray(kernel.matrix())
        assert np.allclose(left.images[0].get_array(), matrix)
        drawn = right.lines[0].get_ydata()
        values = np.sqrt(np.maximum(np.linalg.eigvalsh(matrix @ matrix.T)[::-1], 0))
        np.testing.assert_allclose(drawn[:2], values[:2], rtol=1e-8)
        figure.savefig(tmp_path / "k.png")
    given = axes(2)
    assert kernel.plot(axes=given)[0] is given[0].figure
    with pytest.raises(ValueError, match=r"axes must be 2 axes of matplotlib, e.g. figure, axes ="):
        kernel.plot(axes=axes())
    with pytest.raises(ValueError, match="matrix must be finite"):
        plot.kernel(np.full((2, 2), np.nan))


def history(**more):
    steps = np.arange(4)
    return pb.History({"step": steps, "loss": 10.0**-steps} | more)


def test_a_history_draws_the_columns_that_are_named(tmp_path):
    some = history(accuracy=np.array([np.nan, 0.5, np.nan, 0.7]), norm=np.ones(4))
    figure = some.plot("accuracy", "loss", "norm")
    assert [ax.get_title() for ax in figure.axes] == ["accuracy", "loss", "norm"]
    assert figure.axes[0].lines[0].get_xdata().tolist() == [1, 3]
    assert figure.axes[1].get_yscale() == "log"
    figure.savefig(tmp_path / "h.png")
    with pytest.raises(ValueError, match=r"plot\(names='los'\): names must be columns of the hist"):
        some.plot("los")
    with pytest.raises(ValueError, match="step, loss, accuracy, norm"):
        some.plot("los")
    with pytest.raises(ValueError, match="none yet"):
        pb.History({}).plot("loss")
    given = axes()
    assert some.plot("loss", axes=given) is given.figure and len(given.lines) == 1
    with pytest.raises(ValueError, match="axes must be 2 axes of matplotlib"):
        some.plot("loss", "norm", axes=given)
    with pytest.raises(ValueError, match="axes must be one axes of matplotlib"):
        some.plot("loss", axes="here")


def test_the_overview_shows_the_held_out_loss_and_numbers_of_the_user():
    held = np.array([np.nan, 0.3, np.nan, 0.1])
    figure = history(validation=held, accuracy=held, name=np.array(list("abcd"))).plot()
    titles = [ax.get_title() for ax in figure.axes]
    assert titles == [
        "loss",
        "length of the steps",
        "damping and rate",
        "rank of A",
        "accuracy",
        "",
    ]
    loss = figure.axes[0]
    assert loss.get_legend_handles_labels()[1] == ["training", "held out"]
    assert loss.lines[1].get_ydata().tolist() == [0.3, 0.1]
    assert len(pb.History({}).plot().axes) == 4
    figure = history(loss=np.full(4, np.nan)).plot()
    assert len(figure.axes) == 4


def test_fit_draws_its_history():
    fit = pb.Fit(START, None, history(), 4, 1.0, "all 4 steps were made")
    assert [ax.get_title() for ax in fit.plot("loss").axes] == ["loss"]
    assert len(fit.plot().axes) == 4


def test_records_draw_on_given_axes():
    given = axes()
    page = pb.examine(QUADRATIC, START, nearby=0)
    assert page.plot(axes=given) == (given.figure, given)
    f = pb.Units(60.0)
    found = pb.check_invariance(QUADRATIC, START, reparametrisation=f, halvings=2, counts=())
    assert found.plot(axes=given) == (given.figure, given)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: plot.spectrum([1.0]), r"values must be a dictionary that is not empty, e.g. spec"),
        (lambda: plot.spectrum({}), "values must be a dictionary that is not empty"),
        (lambda: plot.spectrum({"A": [[1.0]]}), r"values\['A'\] must be a vector of real numbers"),
        (lambda: plot.spectrum({"A": ["x"]}), r"values\['A'\] must be a vector of real numbers"),
        (lambda: plot.spectrum({"A": []}), r"values\['A'\] must be a vector of real numbers, not"),
        (lambda: plot.spectrum({"A": [1.0]}, cutoff=-1.0), "cutoff must be finite and >= 0"),
        (lambda: plot.spectrum({"A": [1.0]}, axes=3), "axes must be one axes of matplotlib"),
        (lambda: plot.orders({"A": [1.0]}), r"curves\['A'\] must be a pair \(step sizes, disc"),
        (lambda: plot.orders({"A": ([1.0], [1.0, 2.0])}), r"one for each of the 2 discrepancies"),
        (lambda: plot.orders({"A": ([0.0], [1.0])}), r"must be positive"),
        (lambda: plot.orders([]), "curves must be a dictionary"),
        (lambda: plot.kernels({}), "maps must be a dictionary"),
        (lambda: plot.kernels({"a": np.eye(2)}, columns=0), "columns must be an integer of at lea"),
        (lambda: plot.kernel(np.ones(3)), "matrix must be a matrix of real numbers"),
        (lambda: plot.path([0.0, 1.0], [1.0]), r"values must be of shape \(2,\), one for each"),
        (lambda: plot.path([], []), "times must be a vector of real numbers, not empty"),
        (lambda: plot.distances([0.0], 3), "curve must be a Distance of 1 points"),
        (lambda: plot.ellipses([[0.0, 0.0]], [np.eye(2)], radius=0.0), "radius must be positive"),
        (lambda: plot.spaces(QUADRATIC, {}), "paths must be a dictionary"),
    ],
)
def test_arguments_are_checked(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_window_is_checked():
    problem = pb.Composite(lambda p: p, lambda z: jnp.sum(z**2))
    with pytest.raises(ValueError, match=r"window must be \(\(left, right\), \(bottom, top\)\)"):
        plot.spaces(problem, {"a": np.eye(2)}, window=((1.0, 0.0), (0.0, 1.0)))
