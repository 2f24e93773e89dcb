"""The plan of the house: who may import whom, and how large a file or a function may grow.

Nothing is imported here: the sources are parsed. Imports inside functions count like any other.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOUSE = ROOT / "src" / "pullback"
LABORATORY = ROOT / "src" / "pullback_lab"

# Room -> the rooms it is built on. A room may import these and what they are built on.
ROOMS: dict[str, set[str]] = {
    "_base": set(),
    "_compat": {"_base"},
    "plot": {"_base"},
    "metric": {"_base"},
    "inverse": {"_base"},
    "linear": {"_base"},
    "constraint": {"_base"},
    "weights": {"_base"},
    "_problem": {"metric", "_compat"},
    "_rows": {"_problem", "_compat"},
    "_gram": {"_rows"},
    "solver": {"_gram", "inverse"},
    "_natural": {"solver"},
    "step": {"_natural"},
    "momentum": {"_natural"},
    "_descent": {"step", "momentum", "constraint", "weights"},
    "until": {"_base"},
    "_fit": {"_descent", "until", "plot"},
    "event": {"_problem"},
    "_flow": {"_natural", "event", "constraint", "plot"},
    "_proximal": {"_natural"},
    "_geometry": {"_descent", "_flow"},
    "pde": {"_fit"},
    "vmc": {"_fit"},
    "testing": {"_fit", "_geometry", "_proximal", "pde", "vmc", "linear"},
}
PRIVATE_JAX = "_compat"
"""The one room that may lean on JAX's insides."""
LINES_OF_A_FILE = 400
LINES_OF_A_FUNCTION = 60  # its docstring not counted
COLUMNS = 100

FILES = sorted(HOUSE.rglob("*.py"))
TEXT = sorted(
    path
    for folder in ("src", "tests", "examples", "bench")
    for path in (ROOT / folder).rglob("*.py")
    if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
)


def module_of(path: Path) -> str:
    """`metric/_base.py` is `pullback.metric._base`, `metric/__init__.py` is `pullback.metric`."""
    parts = ["pullback", *path.relative_to(HOUSE).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def imports_of(source: str, module: str, is_package: bool, known: set[str]) -> set[str]:
    """The modules of `known` that a module imports."""
    package = module.split(".") if is_package else module.split(".")[:-1]
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            target = ".".join([*base, *([node.module] if node.module else [])])
            submodules = {f"{target}.{alias.name}" for alias in node.names} & known
            # `from . import a, b` imports the submodules; the package itself only for what is not
            # one of them.
            found |= submodules | (set() if len(submodules) == len(node.names) else {target})
    return found & known


def allowed(room: str) -> set[str]:
    """The rooms that a room may import: those it is built on, and what they are built on."""
    if room == "__init__":
        return set(ROOMS)
    below = ROOMS[room]
    return below.union(*(allowed(other) for other in below))


def trespasses(imports: dict[str, set[str]]) -> list[str]:
    """The imports that the plan does not allow, in words."""
    found = []
    for module, targets in imports.items():
        room = room_of(module)
        may = allowed(room)
        for target in sorted(targets):
            if room_of(target) not in may | {room}:
                found.append(f"{module} imports {target}: {room} may import {sorted(may)}")
    return found


def cycles(imports: dict[str, set[str]]) -> list[str]:
    """The modules that import themselves in the end."""

    def reachable(start):
        seen, todo = set(), list(imports.get(start, ()))
        while todo:
            module = todo.pop()
            if module not in seen:
                seen.add(module)
                todo.extend(imports.get(module, ()))
        return seen

    return [module for module in imports if module in reachable(module)]


def long_functions(source: str, limit: int) -> list[str]:
    """The functions of more lines than the limit, docstrings not counted."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            has_docstring = ast.get_docstring(node, clean=False) is not None
            docstring = node.body[0].end_lineno - node.body[0].lineno + 1 if has_docstring else 0
            if (lines := node.end_lineno - node.lineno + 1 - docstring) > limit:
                found.append(f"{node.name} has {lines} lines")
    return found


@pytest.fixture(scope="module")
def imports():
    known = {module_of(path) for path in FILES}
    return {
        module_of(p): imports_of(p.read_text(), module_of(p), p.name == "__init__.py", known)
        for p in FILES
    }


def test_every_room_is_in_the_plan(imports):
    assert {room_of(module) for module in imports} == {*ROOMS, "__init__"}


def test_the_library_does_not_import_its_laboratory():
    sources = "".join(path.read_text() for path in FILES)
    assert "pullback_lab" not in sources


def test_imports_keep_to_the_plan(imports):
    assert trespasses(imports) == []


def test_no_import_cycles(imports):
    assert cycles(imports) == []


def test_the_parser_sees_every_kind_of_import():
    known = {
        "pullback",
        "pullback._tree",
        "pullback.solver",
        "pullback.solver._base",
        "pullback.solver._svd",
    }
    source = (
        "def f():\n    from .solver import SVD\nfrom ._tree import inner\n"
        "import pullback.solver._svd\nimport jax"
    )
    assert imports_of(source, "pullback._pullback", False, known) == {
        "pullback.solver",
        "pullback._tree",
        "pullback.solver._svd",
    }
    assert imports_of(
        "from . import _base\nfrom .._tree import a", "pullback.solver._svd", False, known
    ) == {
        "pullback.solver._base",
        "pullback._tree",
    }
    assert imports_of("from ._svd import SVD", "pullback.solver", True, known) == {
        "pullback.solver._svd"
    }
    assert imports_of("from .. import solver, x", "pullback.solver._svd", False, known) == {
        "pullback",
        "pullback.solver",
    }


def test_the_rules_can_be_broken():
    bad = {
        "pullback._rows.rows": {"pullback.solver"},
        "pullback.linear._a": {"pullback._rows.rows", "pullback._base.tree"},
    }
    assert [sentence.split(":")[0] for sentence in trespasses(bad)] == [
        "pullback._rows.rows imports pullback.solver",
        "pullback.linear._a imports pullback._rows.rows",
    ]
    fine = {"pullback.solver._svd": {"pullback.solver._base", "pullback._base.types"}}
    assert trespasses(fine) == []
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c"]
    assert long_functions("def f():\n    'one'\n    x = 1\n    return x", 3) == []
    assert long_functions("def f():\n    x = 1\n    y = 2\n    return x", 3) == ["f has 4 lines"]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(HOUSE)))
def test_files_are_small_explained_and_public(path):
    source = path.read_text()
    assert len(source.splitlines()) <= LINES_OF_A_FILE
    assert long_functions(source, LINES_OF_A_FUNCTION) == []
    assert ast.get_docstring(ast.parse(source)), "a module opens with the map it implements"
    if path.parent.name != PRIVATE_JAX:
        assert not re.search(r"jax\._src|jaxlib|jax\.extend|jax\.ffi|_p\.bind", source), "_compat/"


def test_the_figure_of_the_rooms_is_up_to_date():
    words = [sys.executable, str(ROOT / "docs" / "architecture.py"), "--check"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_line_fits_in_the_columns():
    long = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in TEXT
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > COLUMNS
    ]
    assert long == []


def test_what_is_imported_is_declared():
    """The library's dependencies, and those of the laboratory with the extra `lab`."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    name = lambda line: re.split(r"[<>=!~\[ ]", line)[0].replace("-", "_").lower()
    library = {name(line) for line in project["dependencies"]}
    extras = {name(line) for line in project["optional-dependencies"]["lab"]}
    known = {"sklearn": "scikit_learn", "jaxlib": "jax", "markdown_it": "markdown_it_py"}
    # Imported where they are used, with a message if absent; IPython only by a program inside it.
    optional = {"matplotlib", "rich", "IPython", "netket"}

    def foreign(paths):
        found = set()
        for path in paths:
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    found |= {alias.name.split(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and not node.level:
                    found.add(node.module.split(".")[0])
        own = {"pullback", "pullback_lab"}
        return {known.get(x, x) for x in found - set(sys.stdlib_module_names) - own}

    assert foreign(FILES) - library - optional == set()
    assert foreign(LABORATORY.rglob("*.py")) - library - extras == set()


@pytest.mark.parametrize("path", sorted((ROOT / "constraints").glob("*.txt")), ids=lambda p: p.name)
def test_pins_are_names_and_versions_only(path):
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    assert lines
    assert [
        line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line)
    ] == []
