import os

import pytest
from walk import OPT, START, bits, run

import pullback as pb


@pytest.fixture(scope="module")
def whole():
    """The bits of a run of 8 steps."""
    return bits(pb.fit(OPT, START, None, 8))


@pytest.fixture
def saved(tmp_path):
    """A folder with the checkpoints of 6 and 4 steps."""
    run(tmp_path, 6)
    names = ["history.rows", "step-000000004.ckpt", "step-000000006.ckpt"]
    assert sorted(os.listdir(tmp_path)) == names
    return tmp_path
