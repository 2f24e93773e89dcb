"""The snippets of the pages on wave functions, policies and variational inference run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("vmc.md", "policies.md", "variational-inference.md")


@pytest.mark.parametrize("page", PAGES)
def test_snippets_run(page, tmp_path):
    text = (DOCS / page).read_text()
    snippets = re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    script = tmp_path / "page.py"
    script.write_text("\n".join(snippets))
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        check=False,
    )
    assert snippets and done.returncode == 0, done.stderr
    if page == "policies.md":
        assert 0.98 * 0.01 < float(done.stdout.split()[0]) <= 0.01
    if page == "vmc.md":
        found, exact = map(float, done.stdout.splitlines()[0].split())
        assert abs(found / exact - 1) < 1e-10
