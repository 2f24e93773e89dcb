"""Pictures: figure and axes come back, nothing is shown, what is drawn is what was given."""

import builtins

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import normal

import pullback as pb
from pullback import plot


def saved(figure, path):
    figure.savefig(path)
    return path.read_bytes().startswith(b"\x89PNG")


def test_ellipses_have_the_length_they_say(tmp_path):
    points = np.array([[0.0, 0.0], [1.0, 2.0]])
    matrices = np.array([[[4.0, 1.0], [1.0, 3.0]], [[1.0, 0.0], [0.0, 0.0]]])
    figure, axes = plot.ellipses(points, matrices, radius=0.5, label="G")
    curve = np.stack(axes.lines[0].get_data())
    assert np.allclose(np.einsum("ik,ij,jk->k", curve, matrices[0], curve), 0.25)
    # A singular metric has a strip, not an ellipse: two dashed lines half a unit off.
    strips = [line for line in axes.lines if line.get_linestyle() == "--"]
    assert len(strips) == 2 and sorted(float(line.get_xdata()[0]) for line in strips) == [0.5, 1.5]
    assert saved(figure, tmp_path / "a.png")
    with pytest.raises(ValueError, match=r"matrices\[0\] must be positive semi-definite, but its"):
        plot.ellipses(points[:1], np.array([[[1.0, 0.0], [0.0, -1.0]]]))
    with pytest.raises(ValueError, match=r"matrices must be an array of shape \(2, 2, 2\), one"):
        plot.ellipses(points, matrices[:1])
    with pytest.raises(ValueError, match=r"points must be an array of shape \(n, 2\), not \(2,\)"):
        plot.ellipses(points[0], matrices)


def test_paths_in_both_spaces(tmp_path):
    problem = pb.Composite(lambda x: jnp.stack([x[0], x[1] ** 2]), lambda z: jnp.sum(z**2))
    path = np.array([[1.0, 2.0], [0.5, 1.0], [0.1, 0.2]])
    figure, axes = plot.spaces(problem, {"a path": path}, markers=True)
    drawn = np.stack(axes[1].lines[0].get_data())
    assert np.allclose(drawn, [path[:, 0], path[:, 1] ** 2]) and saved(figure, tmp_path / "b.png")
    with pytest.raises(ValueError, match=r"paths\['x'\] must be an array of shape \(n, 2\), not"):
        plot.spaces(problem, {"x": np.zeros((3, 3))})
    likelihood = pb.Composite(problem.model, metric=pb.metric.Gaussian())
    with pytest.raises(ValueError, match="problem must be a problem whose loss is a function"):
        plot.spaces(likelihood, {"x": path})
    three = pb.Composite(lambda x: jnp.stack([x[0], x[1], x[0]]), lambda z: jnp.sum(z**2))
    with pytest.raises(ValueError, match=r"the model must have outputs of shape \(2,\)"):
        plot.spaces(three, {"x": path})


def test_curves_and_maps(tmp_path):
    figure, axes = plot.spectrum({"A": np.array([1.0, 0.1, 0.0])}, cutoff=1e-3)
    figure.canvas.draw()
    assert all(tick == round(tick) for tick in axes.get_xticks())
    assert axes.get_yscale() == "log" and saved(figure, tmp_path / "c.png")
    figure, _ = plot.orders(
        {
            "one": (np.array([1.0, 0.5]), np.array([1e-2, 2.5e-3])),
            "zero": (np.array([1.0, 0.5]), np.zeros(2)),
        }
    )
    assert saved(figure, tmp_path / "d.png")
    figure, axes = plot.kernels({str(i): normal(3, 3, seed=i) for i in range(3)}, columns=2)
    assert axes.shape == (2, 2) and saved(figure, tmp_path / "e.png")
    curve = pb.Distance(jnp.asarray([0.0, 1.0]), jnp.asarray([0.0, 1.1]), jnp.asarray([0.0, 2.0]))
    assert saved(plot.distances([0.0, 1.0], curve)[0], tmp_path / "f.png")
    with pytest.raises(ValueError, match=r"maps\['v'\] must be a matrix, not of shape \(2,\)"):
        plot.kernels({"v": np.zeros(2)})


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pullback\[figures\]"):
        plot.spectrum({"A": [1.0]})
