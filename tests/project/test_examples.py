"""Every script in examples/ runs as a user would run it, with warnings as errors, and says what it
checked.
"""

import ast
import importlib.util
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import pullback_lab.papers
from pullback_lab.papers import Claim, Measured, Role, Verdict, at_most

FOLDER = Path(__file__).parents[2] / "examples"
# The claims are run one by one in test_claims.py; here a few of them are enough to see that the
# script works.
ARGUMENTS = {
    "plan.py": ["W2"],
    "theorems.py": ["lemma-1", "figure-eight-numbers"],
    "digits.py": ["--quick"],
    "diabetes.py": ["--quick"],
    "mnist5k.py": ["--quick"],
    "devices.py": ["--quick"],
    "trpo.py": ["--steps=5000"],
    "vmc_netket.py": ["--steps=10", "--only=RBM"],
}
SAYS = {
    "quickstart.py": [
        "rank            40",
        "in range        outputs 1.0",
        "cut-off",
        "dense formula   rank 40",
        "what the metric sees",
    ],
    "theorems.py": [
        "lemma-1",
        "figure-eight-numbers",
        "holds with correction",
        "2 of 2 verdicts are those on record.",
    ],
    "equinox_mlp.py": ["Equinox: loss", "rank"],
    "flax_linen.py": ["Flax linen: loss", "rank"],
    "flax_nnx.py": ["Flax nnx: loss", "after 30 steps"],
    "batchnorm.py": ["Equinox, batch norm and dropout", "60 steps were accepted", "inference"],
    "dropout.py": ["linen, dropout", "linen, batch norm and dropout", "inference error"],
    "nnx_state.py": ["NNX, batch norm and dropout", "60 masks were drawn", "inference"],
    "optax_loop.py": ["Optax: loss", "rank"],
    "plain_pytree.py": ["Plain pytree: loss", "rank"],
    "digits.py": ["natural gradient", "Adam", "L-BFGS", "population Fisher"],
    "digits_cnn.py": ["without batch normalisation: loss", "with batch normalisation: loss"],
    "diabetes.py": ["natural gradient", "Optimistix", "fraction of the gradient in the range"],
    "mnist5k.py": ["| digits | AdamW |", "| digits | SOAP |", "| digits | BlockDescent |"],
    "when_to_use.py": [
        "logistic regression",
        "variational Bayes",
        "an equation",
        "error: natural",
        "a classifier",
    ],
    "vmc.py": ["Ising chain 10, all configurations: relative error", "512 samples", "acceptance"],
    "vmc_netket.py": ["RBM, rate", "NetKet, VMC_SR: relative error", "from VMC_SR's"],
    "j1j2.py": ["107 classes, 316 parameters", "break Marshall's sign rule"],
    "trpo.py": ["CartPole, natural gradient: return 475 reached", "KL spent / asked"],
    "variational_inference.py": ["ordinal: -ELBO 135.299", "negative binomial: -ELBO 184.868"],
    "plan.py": ["== W2", "runs: Dual", "measured:"],
    "figure_eight.py": ["(0.8, 0.4) and (0.8, -0.4)"],
    "invariance.py": ["Theorem 2 holds", "natural, Moore-Penrose", "L-BFGS", ": proper"],
    "extend.py": [
        "inverse Landweber, Dual",
        "event NormBelow",
        "Landweber with Krylov                       ValueError",
        "residual 0.50, not successful: True",
    ],
    "own_equation.py": ["60 initial, 60 dirichlet", "loss of 'inside'", "Largest error"],
    "inverse_problem.py": ["κ = 0.2", "true 0.25", "Picture:"],
    "terms.py": [
        "boundary      0.284677, weight 10",
        "the two natural gradients differ by",
        "terms and the stacked problem agree",
        "drawn in",
    ],
    "devices.py": ["1 x 4", "Primal", "Krylov", "Dual", "MB a device", "kB received"],
    "constraints.py": ["moved back by", "clipped at zero it does not: as said"],
    "flows.py": ["depth 2, t = 1e+06", "t = 1e+100", "ran into a change of rank"],
    "kernels.py": ["M⁻¹ in every parametrisation", "does not see 120 of 121 output directions"],
    "lecture3.py": [
        "rosenbrock.png",
        "units.png",
        "changes by 3600 (gradient), 1 (natural gradient)",
    ],
}


def run(script, folder, arguments=()):
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-W", "error", str(FOLDER / script), *arguments]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=folder,
        env=environment,
        check=False,
    )


# Half a minute or more each, nearly all of it compiling.
SLOW = {
    "extend.py",
    "lecture3.py",
    "invariance.py",
    "flows.py",
    "kernels.py",
    "digits.py",
    "diabetes.py",
    "plan.py",
    "mnist5k.py",
    "when_to_use.py",
    "own_equation.py",
    "inverse_problem.py",
    "vmc.py",
    "vmc_netket.py",
    "j1j2.py",
    "trpo.py",
    "variational_inference.py",
}
SCRIPTS = sorted(path.name for path in FOLDER.glob("[!_]*.py"))


@pytest.mark.parametrize(
    "script",
    [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in SCRIPTS],
)
def test_it_runs_and_says_what_it_checked(script, tmp_path):
    done = run(script, tmp_path, ARGUMENTS.get(script, ()))
    if script == "vmc_netket.py" and importlib.util.find_spec("netket") is None:
        assert done.returncode == 1 and "pip install 'pullback[netket]'" in done.stderr
        return
    assert done.returncode == 0, done.stderr
    assert [words for words in SAYS[script] if words not in done.stdout] == []
    if script in ("figure_eight.py", "digits.py", "diabetes.py", "terms.py"):
        saved = tmp_path / "pictures" / script.replace(".py", ".png")
        assert saved.read_bytes().startswith(b"\x89PNG")


def test_pictures_are_saved_where_git_ignores_them(monkeypatch, tmp_path):
    pictures = runpy.run_path(str(FOLDER / "_pictures.py"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["some.py", "--quick"])
    assert pictures["picture_path"]("a.png") == Path("pictures/a.png")
    assert pictures["picture_folder"]() == Path("pictures") and Path("pictures").is_dir()
    monkeypatch.setattr(sys, "argv", ["some.py", "--quick", "there/b.png"])
    assert pictures["picture_path"]("a.png") == Path("there/b.png") and Path("there").is_dir()
    ignored = (FOLDER.parent / ".gitignore").read_text().splitlines()
    assert "pictures/" in ignored


@pytest.mark.parametrize("script", SCRIPTS)
def test_no_example_names_a_picture_of_its_own(script):
    """A path of a picture comes from `_pictures.py`."""
    text = (FOLDER / script).read_text()
    if "savefig" in text or "picture(" in text:
        assert "from _pictures import" in text
        assert "Path(sys.argv" not in text and not re.search(r'else "[^"]*[.](png|svg|pdf)"', text)


def test_claims_run_as_a_script(tmp_path):
    done = run("theorems.py", tmp_path, ["lemma-1", "theorem-1", "figure-eight-numbers"])
    assert done.returncode == 0 and "3 of 3 verdicts are those on record" in done.stdout, (
        done.stdout + done.stderr
    )
    assert "FAILS" in done.stdout and "holds with correction" in done.stdout


def test_an_unknown_name_is_refused_with_the_known_ones(tmp_path):
    done = run("theorems.py", tmp_path, ["theorem-3"])
    assert done.returncode == 2 and "theorem-2" in done.stderr


def test_the_exit_code_says_whether_all_holds(monkeypatch, capsys):
    run = lambda bound: (
        lambda budget, key: Measured(
            (at_most("a number", 1.0, bound), at_most("sane", 0.0, 1.0, Role.CONTROL))
        )
    )
    made = {
        str(holds): Claim(
            name=str(holds),
            source="ours",
            place="",
            statement="",
            verdict=Verdict.HOLDS,
            run=run(2.0 if holds else 0.5),
        )
        for holds in (True, False)
    }
    monkeypatch.setattr(pullback_lab.papers, "REGISTRY", made)
    script = runpy.run_path(str(FOLDER / "theorems.py"))
    assert [script["main"]([name]) for name in ("True", "False")] == [0, 1] and script["main"](
        []
    ) == 1
    assert "FAILS          1 ≤ 0.5" in capsys.readouterr().out


def test_recipes_are_under_thirty_lines():
    recipes = ("equinox_mlp.py", "flax_linen.py", "flax_nnx.py", "optax_loop.py", "plain_pytree.py")
    assert [name for name in recipes if len((FOLDER / name).read_text().splitlines()) >= 30] == []


def test_scripts_are_short():
    """But for `extend.py`, which has one piece of every kind."""
    paths = [path for path in FOLDER.glob("[!_]*.py") if path.name != "extend.py"]
    assert [path.name for path in paths if len(path.read_text().splitlines()) > 80] == []


def test_a_piece_of_your_own_takes_fifteen_lines():
    """A solver has two classes; docstrings and empty lines are not counted."""
    sizes = {}
    for node in ast.parse((FOLDER / "extend.py").read_text()).body:
        if isinstance(node, ast.ClassDef):
            node.body = node.body[1:] if ast.get_docstring(node) else node.body
            sizes[node.name] = len(ast.unparse(node).replace("\n\n", "\n").splitlines())
    sizes["NormalEquations"] += sizes.pop("CholeskyFactors")
    assert {name: size for name, size in sizes.items() if size > 15} == {}
