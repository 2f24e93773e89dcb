"""Documentation that cannot drift: docstrings name the real arguments, and every public name has
its place in docs/api.
"""

import ast
import dataclasses
import importlib
import inspect
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = (
    "pullback",
    "pullback.constraint",
    "pullback.weights",
    "pullback.event",
    "pullback.inverse",
    "pullback.linear",
    "pullback.metric",
    "pullback.momentum",
    "pullback.pde",
    "pullback.plot",
    "pullback.solver",
    "pullback.step",
    "pullback.testing",
    "pullback.until",
    "pullback.vmc",
)


def exports(module: str) -> dict[str, object]:
    """The public names a package hands out, read from the imports of its `__init__`."""
    loaded = importlib.import_module(module)
    names = set()
    for node in ast.walk(ast.parse(Path(loaded.__file__).read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            names |= {alias.asname or alias.name for alias in node.names}
    return {name: getattr(loaded, name) for name in sorted(names) if not name.startswith("_")}


def is_ours(thing) -> bool:
    return callable(thing) and getattr(thing, "__module__", "").split(".")[0] == "pullback"


def members(thing) -> dict[str, object]:
    """The public methods a class defines itself, and its `__init__` if that has a docstring."""
    found = {}
    for name, member in vars(thing).items() if inspect.isclass(thing) else ():
        function = inspect.unwrap(getattr(member, "__func__", getattr(member, "fn", member)))
        if inspect.isfunction(function) and (
            not name.startswith("_") or (name == "__init__" and function.__doc__)
        ):
            found[name] = function
    return found


def listed(docstring: str) -> list[str]:
    """The names listed under **Arguments:**."""
    section = docstring.split("**Arguments:**", 1)[1]
    section = re.split(r"^\*\*\w+:\*\*", inspect.cleandoc(section), flags=re.MULTILINE)[0]
    heads = re.findall(r"^- ((?:`[^`]+`(?:, | and )?)+):", section, flags=re.MULTILINE)
    return [name.lstrip("*") for head in heads for name in re.findall(r"`([^`]+)`", head)]


def parameters(thing) -> list[str]:
    """The parameters of a function; the fields or the parameters of `__init__` of a class."""
    if inspect.isclass(thing) and dataclasses.is_dataclass(thing) and "__init__" not in vars(thing):
        return [field.name for field in dataclasses.fields(thing) if field.init]
    function = thing.__init__ if inspect.isclass(thing) else inspect.unwrap(thing)
    return [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]


def disagreement(thing) -> str | None:
    """How a docstring with **Arguments:** differs from the signature, in words."""
    docstring = inspect.unwrap(thing).__doc__ or ""
    if "**Arguments:**" not in docstring:
        return None
    named, real = listed(docstring), parameters(thing)
    if named == real:
        return None
    if extra := [name for name in named if name not in real]:
        return f"names {extra}, which are no parameters"
    if missing := [name for name in real if name not in named]:
        return f"does not name {missing}"
    return f"names {named} in another order than {real}"


PUBLIC = {
    f"{module}.{name}": thing
    for module in MODULES
    for name, thing in exports(module).items()
    if is_ours(thing)
}
METHODS = {
    f"{path}.{name}": member
    for path, thing in PUBLIC.items()
    for name, member in members(thing).items()
}


@pytest.mark.parametrize("path", sorted(PUBLIC))
def test_every_public_name_has_a_docstring(path):
    assert (inspect.unwrap(PUBLIC[path]).__doc__ or "").strip()


def test_every_public_method_has_a_docstring_or_inherits_one():
    owners = {path: PUBLIC[path.rpartition(".")[0]] for path in METHODS}
    assert [
        path
        for path in METHODS
        if not inspect.getdoc(getattr(owners[path], path.rpartition(".")[2]))
    ] == []


def test_docstrings_name_the_real_arguments():
    found = {path: disagreement(thing) for path, thing in (PUBLIC | METHODS).items()}
    assert {path: words for path, words in found.items() if words} == {}


def test_functions_with_parameters_list_them():
    """A public function with more than one parameter explains them; a method may inherit the
    explanation.
    """
    silent = [
        path
        for path, thing in PUBLIC.items()
        if not inspect.isclass(thing)
        and len(parameters(thing)) > 1
        and "**Arguments:**" not in inspect.unwrap(thing).__doc__
    ]
    assert silent == []


def test_the_comparison_can_fail():
    def right(a, *b, c=1):
        """Text.

        **Arguments:**

        - `a`, `*b`: two of them,
            with `code`: in a second line.
        - `c`: the third.

        **Returns:**

        - `d`: not an argument.
        """

    def wrong(a, b):
        """**Arguments:**

        - `a`: there.
        - `x`: not there.
        """

    def short(a, b):
        """**Arguments:**

        - `a`: there.
        """

    assert disagreement(right) is None
    assert disagreement(wrong) == "names ['x'], which are no parameters"
    assert disagreement(short) == "does not name ['b']"


def api() -> set[str]:
    """What the pages in docs/api show."""
    pages = sorted((ROOT / "docs" / "api").glob("*.md"))
    return {
        path
        for page in pages
        for path in re.findall(r"^::: (\S+)", page.read_text(), flags=re.MULTILINE)
    }


def test_every_public_name_is_on_an_api_page():
    shown = {id(PUBLIC[name]) for name in api() if name in PUBLIC}
    # Some names stand at the top and in their room: one of the two is enough.
    missing = {name for name, thing in PUBLIC.items() if id(thing) not in shown}
    assert missing == set(), "add `::: <name>` to a page in docs/api"


def test_the_api_pages_show_only_what_exists():
    gone = [path for path in sorted(api()) if path not in PUBLIC and path not in MODULES]
    assert gone == []


def test_every_page_is_in_the_navigation():
    nav = (ROOT / "mkdocs.yml").read_text()
    pages = [str(path.relative_to(ROOT / "docs")) for path in sorted((ROOT / "docs").rglob("*.md"))]
    assert [page for page in pages if page not in nav] == []


def test_the_documentation_needs_no_network():
    texts = [
        ROOT / "mkdocs.yml",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "docs").glob("assets/*.*"),
    ]
    loaded = r"""(?:src=|@import |url\(|^ *- )["']?https?://"""
    assert [
        str(path) for path in texts if re.search(loaded, path.read_text(), flags=re.MULTILINE)
    ] == []
