"""Names of a package that are imported when they are first used.

A stub `__init__.pyi` beside `__init__.py` holds the imports as they would stand there, one table for people, type checkers and this module:

    from ._composite import Composite as Composite    ->    getattr(package, "Composite") imports ._composite
    from . import metric as metric                    ->    getattr(package, "metric") imports .metric
"""

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def attach(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` for a package.

    **Arguments:**

    - `package`: its `__name__`.
    - `file`: its `__file__`.
    """
    homes = {}
    for node in ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            homes.update({alias.asname or alias.name: (node.module, alias.name) for alias in node.names})

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home, original = homes[name]
        found = (
            importlib.import_module(f"{package}.{original}")
            if home is None
            else getattr(importlib.import_module(f"{package}.{home}"), original)
        )
        setattr(sys.modules[package], name, found)  # the next time it is found without us
        return found

    names = sorted(homes)
    return get, lambda: sorted({*vars(sys.modules[package]), *names}), names
