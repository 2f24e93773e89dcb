"""The page on equations runs from its first block to its last."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "pde.md"


@pytest.mark.slow
def test_the_page_runs_and_its_losses_fall():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 4
    scope = {}
    for block in blocks:
        exec(block, scope)
        if "fit" in scope:
            history = scope["fit"].history
            assert history["loss_after"][-1] < 0.1 * history["loss"][0]
    assert scope["best"].method == "ENGD" and scope["burgers"].equation.name == "Burgers"
    # Δ of sin(x₀) exp(x₁) is zero.
    assert abs(scope["laplacian"]) < 1e-12
