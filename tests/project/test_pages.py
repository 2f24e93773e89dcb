"""Every Python block of the README and of the pages runs, with warnings as errors.

The blocks of a page run in their order, in one process and in an empty folder, as a reader pastes
them. `LEFT_OUT` names the pages that this cannot run, with the reason.
"""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = {path.name: path.read_text() for path in [ROOT / "README.md", *ROOT.glob("docs/*.md")]}
LEFT_OUT = {"devices.md": "several devices: test_devices_page.py runs its blocks on forced ones"}
QUICK = ("README.md", "models.md", "policies.md", "variational-inference.md", "vmc.md")
"""The pages that `make test` runs; `make test-all` runs all."""
AFTER_EACH_BLOCK = {
    "pde.md": """
if "fit" in globals():
    assert fit.history["loss_after"][-1] < 0.1 * fit.history["loss"][0]
""",
}
AFTER_THE_LAST_BLOCK = {
    "pde.md": """
assert best.method == "ENGD" and burgers.equation.name == "Burgers"
assert abs(laplacian) < 1e-12  # of sin(x₀) exp(x₁)
""",
}


def fences(text, language):
    found = re.findall(rf"^ *```{language}\n(.*?)^ *```", text, flags=re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(block) for block in found]


def words(line):
    """A line without its rounding errors: numbers in scientific notation are left out."""
    return re.sub(r"\d(?:\.\d+)?e[+-]\d+", "#", line).split()


def check_readme(printed):
    shown = fences(PAGES["README.md"], "text")[0]
    assert [words(line) for line in printed] == [words(line) for line in shown.splitlines()]


def check_models(printed):
    mixed, error, rank = printed
    assert mixed == "True" and float(error.split()[-1]) < 0.2 and rank == "16"


def check_policies(printed):
    assert 0.98 * 0.01 < float(printed[0].split()[0]) <= 0.01


def check_vmc(printed):
    found, exact = map(float, printed[0].split())
    assert abs(found / exact - 1) < 1e-10


PRINTED = {
    "README.md": check_readme,
    "models.md": check_models,
    "policies.md": check_policies,
    "vmc.md": check_vmc,
}
RUN = sorted(page for page in PAGES if fences(PAGES[page], "python") and page not in LEFT_OUT)


def run(folder, name, text):
    """Run the blocks of a page, and return what came of it."""
    check = AFTER_EACH_BLOCK.get(name, "")
    blocks = [f"# block {i} of {name}\n{x}{check}" for i, x in enumerate(fences(text, "python"), 1)]
    script = folder / "page.py"
    script.write_text("\n\n".join(blocks) + AFTER_THE_LAST_BLOCK.get(name, ""))
    return subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "MPLBACKEND": "Agg"},
        check=False,
    )


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=() if x in QUICK else pytest.mark.slow) for x in RUN]
)
def test_the_blocks_of_a_page_run(name, tmp_path):
    done = run(tmp_path, name, PAGES[name])
    assert done.returncode == 0, done.stderr
    if name in PRINTED:
        PRINTED[name](done.stdout.splitlines())


def test_the_lists_name_pages_that_exist():
    named = {*LEFT_OUT, *QUICK, *AFTER_EACH_BLOCK, *AFTER_THE_LAST_BLOCK, *PRINTED}
    assert named <= set(PAGES)
    assert all(fences(PAGES[page], "python") for page in named)


@pytest.mark.parametrize(
    ("block", "words"),
    [("1 / 0", "ZeroDivisionError"), ("import warnings\nwarnings.warn('soon')", "UserWarning")],
)
def test_a_page_that_does_not_run_is_found(block, words, tmp_path):
    text = (
        f"```python\nx = 1\n```\n\n- A list:\n  ```python\n{textwrap.indent(block, '  ')}\n  ```\n"
    )
    done = run(tmp_path, "bad.md", text)
    assert done.returncode != 0 and words in done.stderr
