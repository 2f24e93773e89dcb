"""The plan of the house: who may import whom, and how large a file or a function may grow.

Nothing is imported here: the sources are parsed. Imports inside functions count like any other.
"""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOUSE = ROOT / "src" / "pullback"

# Room -> the rooms it may import, besides itself. ABOVE: every room on an earlier line. ANY: every
# room.
ABOVE, ANY = "above", "any"
VOCABULARY = {"_types", "_tree", "_arguments"}
ROOMS: dict[str, set[str] | str] = {
    "_types": set(),
    "_tree": {"_types"},
    "_arguments": set(),
    "_lazy": set(),
    "_xla": set(),
    "_results": set(),
    "_tangent": VOCABULARY,
    "_measure": VOCABULARY,
    "_linearise": VOCABULARY,
    "_gauge": VOCABULARY,
    "metric": VOCABULARY,
    "_composite": ABOVE,
    "_pullback": ABOVE,
    "_gram": VOCABULARY | {"_linearise"},
    "_inverse": VOCABULARY | {"_gauge"},
    "solver": VOCABULARY | {"_linearise", "_gauge", "_pullback", "_gram", "_inverse", "_results"},
    "_diagnostics": ABOVE,
    "_derivative": ABOVE,
    "_assemble": ABOVE,
    "_judge": ABOVE,
    "_plan": ABOVE,
    "_natural_gradient": ABOVE,
    "plot": VOCABULARY,
    "constraint": VOCABULARY,
    "event": VOCABULARY | {"_composite"},
    "_local": ABOVE,
    "_examine": ABOVE,
    "_reparametrisation": ABOVE,
    "_method": ABOVE,
    "_invariance": ABOVE,
    "_kernel": ABOVE,
    "_distance": ABOVE,
    "_differential": ABOVE,
    "_constrained": ABOVE,
    "step": ABOVE,
    "_momentum": ABOVE,
    "_descent": ABOVE,
    "_optax": ABOVE,
    "_history": ABOVE,
    "_checkpoint": ABOVE,
    "_batches": ABOVE,
    "_progress": set(),
    "_fit": ABOVE,
    "pde": ABOVE,
    "_flow": ABOVE,
    "_proximal": ABOVE,
    "linear": VOCABULARY,
    "testing": ABOVE,
    "papers": ANY,
    "_report": ANY,
    "cli": ANY,
    "__main__": {"cli"},
    "__init__": ANY,
}
LINES_OF_A_FILE = 400
LINES_OF_A_FUNCTION = 60  # its docstring not counted

FILES = sorted(HOUSE.rglob("*.py"))


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


def trespasses(imports: dict[str, set[str]]) -> list[str]:
    """The imports that the table of rooms does not allow, in words."""
    order, found = list(ROOMS), []
    for module, targets in imports.items():
        room = room_of(module)
        rule = ROOMS.get(room, set())
        allowed = (
            set(order[: order.index(room)])
            if rule == ABOVE
            else set(order)
            if rule == ANY
            else set(rule)
        )
        for target in sorted(targets):
            if room_of(target) not in allowed | {room}:
                found.append(
                    f"{module} imports {target}: {room} may import {sorted(allowed) or 'no other room'}"
                )
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
    assert sorted({room_of(module) for module in imports} - set(ROOMS)) == []


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
    source = "def f():\n    from .solver import SVD\nfrom ._tree import inner\nimport pullback.solver._svd\nimport jax"
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
        "pullback._pullback": {"pullback.solver"},
        "pullback.linear._a": {"pullback._pullback", "pullback._tree"},
    }
    assert [sentence.split(":")[0] for sentence in trespasses(bad)] == [
        "pullback._pullback imports pullback.solver",
        "pullback.linear._a imports pullback._pullback",
    ]
    assert (
        trespasses(
            {
                "pullback.solver._svd": {"pullback.solver._base"},
                "pullback.papers.a": {"pullback.cli"},
            }
        )
        == []
    )
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c"]
    assert long_functions("def f():\n    'one'\n    x = 1\n    return x", 3) == []
    assert long_functions("def f():\n    x = 1\n    y = 2\n    return x", 3) == ["f has 4 lines"]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(HOUSE)))
def test_files_are_small_explained_and_public(path):
    source = path.read_text()
    assert len(source.splitlines()) <= LINES_OF_A_FILE
    assert long_functions(source, LINES_OF_A_FUNCTION) == []
    assert ast.get_docstring(ast.parse(source)), "a module opens with the map it implements"
    assert "jax._src" not in source, "no private JAX"


@pytest.mark.parametrize("path", sorted((ROOT / "constraints").glob("*.txt")), ids=lambda p: p.name)
def test_pins_are_names_and_versions_only(path):
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    assert lines
    assert [
        line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line)
    ] == []
