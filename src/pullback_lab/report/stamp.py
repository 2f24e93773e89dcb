"""What a result was made with: budget, seeds, key, versions, and a digest of the sources.

The sources are those of the library, of the module of the claim, and of the modules of
`pullback_lab.papers` that this module imports. A changed claim is run again; a changed library
makes all claims run again.
"""

import ast
import datetime
import functools
import importlib.metadata
import importlib.util
import platform
import sys
from pathlib import Path
from typing import Any

from ..papers import Budget, Claim
from .result import digest

PAPERS = Path(__file__).parents[1] / "papers"
PACKAGES = ("pullback", "jax", "jaxlib", "equinox", "lineax", "numpy")


def stamp(claim: Claim, budget: Budget) -> dict[str, Any]:
    """The stamp of a result."""
    home = sys.modules[claim.run.__module__]
    own = b"".join(path.read_bytes() for path in _closure(Path(home.__file__ or "")))
    made = versions()
    return {
        "full": budget.full,
        "seeds": budget.seeds,
        "key": budget.key,
        "source": digest(_library() + own),
    } | {name: made[name] for name in ("pullback", "jax", "numpy") if name in made}


@functools.cache
def _library() -> bytes:
    """A digest of all sources of the library, found without importing it."""
    spec = importlib.util.find_spec("pullback")
    assert spec is not None
    assert spec.submodule_search_locations
    folders = map(Path, spec.submodule_search_locations)
    paths = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    return digest(b"".join(path.read_bytes() for path in paths)).encode()


@functools.cache
def _closure(start: Path) -> tuple[Path, ...]:
    """A module of `papers` and those it imports from `papers`; another module by itself."""
    found: list[Path] = []
    todo = [start]
    while todo:
        path = todo.pop()
        if path in found or not path.exists():
            continue
        found.append(path)
        if PAPERS not in path.parents:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level:
                base = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
                names = [f"{alias.name}.py" for alias in node.names]
                inside = [base.with_suffix(".py"), *(base / name for name in names)]
                todo.extend(p for p in inside if PAPERS in p.parents)
    return tuple(sorted(found))


@functools.cache
def versions() -> dict[str, str]:
    """The versions of Python and of the main packages, and the machine."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    if "pullback" not in found:  # a checkout that is on the path but not installed
        from pullback import __version__

        found["pullback"] = __version__
    return found | {"machine": f"{platform.system()} {platform.machine()}"}


def now() -> str:
    """The date and time, to the minute."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
