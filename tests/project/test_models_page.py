"""The snippets of docs/models.md run, one after the other, with warnings as errors."""

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


def test_snippets_run(tmp_path):
    snippets = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.DOTALL | re.M)
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
    assert done.returncode == 0, done.stderr
    mixed, error, rank = done.stdout.splitlines()
    assert mixed == "True" and float(error.split()[-1]) < 0.2 and rank == "16"
