"""Claims made for tests of the machinery, in the place of the real ones."""

import importlib
import sys
from pathlib import Path

import pytest

import pullback_lab.cli as cli

SCRIPTS = Path(__file__).parents[1] / "scripts"


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """The folder in which the claims of `made_claims.py` count their runs."""
    monkeypatch.setenv("MADE_CLAIMS", str(tmp_path))
    monkeypatch.syspath_prepend(str(SCRIPTS))
    monkeypatch.delitem(sys.modules, "made_claims", raising=False)
    monkeypatch.setattr(cli, "REGISTRY", importlib.import_module("made_claims").REGISTRY)
    return tmp_path
