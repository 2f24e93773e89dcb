"""The bar of `fit` in a notebook: one output, updated in place, without IPython's help here."""

import sys
import types

import numpy as np
import pytest

import pullback as pb
from pullback._fit import progress


class Handle:
    """An output of a cell, and every content that it had."""

    def __init__(self):
        self.contents = []

    def update(self, bundle, raw):
        assert raw
        self.contents.append(bundle)


@pytest.fixture
def notebook(monkeypatch):
    """A kernel of a notebook, as far as a bar can see it; returns its outputs."""
    handles = []

    def display(bundle, raw, display_id):
        assert raw and display_id
        handles.append(Handle())
        handles[-1].contents.append(bundle)
        return handles[-1]

    shell = types.SimpleNamespace(kernel=object())
    package = types.ModuleType("IPython")
    package.get_ipython = lambda: shell
    module = types.ModuleType("IPython.display")
    module.display = display
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    monkeypatch.setattr(progress, "PAUSE", 0.0)
    handles.append(shell)
    return handles


def rows(step, **more):
    return pb.History({"step": np.array([step]), "loss": np.array([0.5])} | more)


def test_a_notebook_has_one_output_that_changes(notebook, capsys):
    with progress.Progress(True, 10, 2) as bar:
        bar.show(4, rows(3, rank=np.array([7]), damping=np.array([0.1])), 0.5)
        bar.show(10, rows(9), 2.0)
    _, output = notebook
    first, middle, *_, last = output.contents
    assert first["text/plain"].endswith("] 2/10") and first["text/plain"].startswith("[######....")
    assert "4/10  loss 5.000e-01  rank 7  damping 1.0e-01  2.0 steps/s" in middle["text/plain"]
    assert "0:00 left" in middle["text/plain"]
    assert "10/10" in last["text/plain"] and "left" not in last["text/plain"]
    assert "<progress value='10' max='10'></progress>" in last["text/html"]
    assert capsys.readouterr() == ("", "")


def test_fit_shows_its_bar_in_a_notebook_unless_it_is_switched_off(notebook):
    step = lambda params, state, batch: (params, state, {"loss": params})
    optimiser = types.SimpleNamespace(init=lambda params: None, step=step)
    pb.fit(optimiser, np.ones(()), None, 3, progress=False)
    assert len(notebook) == 1
    fit = pb.fit(optimiser, np.ones(()), None, 3)
    assert fit.steps == 3 and "3/3  loss 1.000e+00" in notebook[1].contents[-1]["text/plain"]


def test_pictures_are_not_sent_more_often_than_a_browser_draws(notebook, monkeypatch):
    monkeypatch.setattr(progress, "PAUSE", 1e9)
    with progress.Progress(True, 1000, 0) as bar:
        for step in range(1, 1001):
            bar.show(step, rows(step), 1e-3)
    contents = notebook[1].contents
    assert len(contents) <= 3 and "1000/1000" in contents[-1]["text/plain"]


def test_ipython_in_a_terminal_is_no_notebook(notebook):
    notebook[0].kernel = None
    assert not progress.in_notebook()
    assert progress.Progress(True, 3, 0).bar is None


def test_without_steps_and_for_hours_the_texts_are_right(notebook):
    with progress.Progress(True, 0, 0):
        pass
    assert "0/0" in notebook[1].contents[-1]["text/plain"]
    assert [progress.clock(x) for x in (0.4, 61, 3700)] == ["0:00", "1:01", "1:01:40"]
