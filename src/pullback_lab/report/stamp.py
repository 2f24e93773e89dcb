"""What a result was made with: budget, seeds, versions, and a digest of the sources that it depends
on.

Those are the library itself (everything in the package but the laboratory, the report and the
command line), and of the laboratory the module of the claim with the modules of the laboratory that
it imports. To change one claim is to run that claim again; to change a solver, all of them.
"""

import ast
import datetime
import functools
import importlib.metadata
import platform
import sys
from pathlib import Path
from typing import Any

from ..papers import Budget, Claim
from .result import digest

HOUSE = Path(__file__).parent.parent
OUTSIDE = ("papers", "_report", "cli.py", "__main__.py")
PACKAGES = ("pullback", "jax", "jaxlib", "equinox", "lineax", "numpy")


def stamp(claim: Claim, budget: Budget) -> dict[str, Any]:
    """The stamp of a result."""
    home = sys.modules[claim.run.__module__]
    own = b"".join(path.read_bytes() for path in _closure(Path(home.__file__ or "")))
    made = versions()
    return {"full": budget.full, "seeds": budget.seeds, "source": digest(_library() + own)} | {
        name: made[name] for name in ("pullback", "jax", "numpy") if name in made
    }


@functools.cache
def _library() -> bytes:
    paths = [path for path in sorted(HOUSE.rglob("*.py")) if path.relative_to(HOUSE).parts[0] not in OUTSIDE]
    return digest(b"".join(path.read_bytes() for path in paths)).encode()


@functools.cache
def _closure(start: Path) -> tuple[Path, ...]:
    """A module of the laboratory and those it imports from the laboratory; other modules by
    themselves.
    """
    papers, found, todo = HOUSE / "papers", [], [start]
    while todo:
        path = todo.pop()
        if path in found or not path.exists():
            continue
        found.append(path)
        if papers not in path.parents:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level:
                base = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
                inside = [base.with_suffix(".py"), *(base / f"{alias.name}.py" for alias in node.names)]
                todo.extend(p for p in inside if papers in p.parents)
    return tuple(sorted(found))


@functools.cache
def versions() -> dict[str, str]:
    """Python and the packages that matter, and the machine."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    if "pullback" not in found:  # from a checkout that is on the path but not installed
        from pullback import __version__

        found["pullback"] = __version__
    return found | {"machine": f"{platform.system()} {platform.machine()}"}


def now() -> str:
    """Date and time, to the minute."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
