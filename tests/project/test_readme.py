"""The quick start of the README, run as it stands."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_the_quick_start_runs(tmp_path):
    block = re.search(r"^```python\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE).group(1)
    script = tmp_path / "quickstart.py"
    script.write_text(block)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shown = re.search(r"^```text\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE).group(1)
    assert [words(line) for line in done.stdout.splitlines()] == [
        words(line) for line in shown.splitlines()
    ]


def words(line: str) -> list[str]:
    """A line without its rounding errors: numbers in scientific notation are left out."""
    return re.sub(r"\d(?:\.\d+)?e[+-]\d+", "#", line).split()


def test_the_files_and_targets_it_names_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"`?make ([a-z-]+)", README)):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
    for link in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / link).exists(), link
