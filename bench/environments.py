"""The environments of the peers, each its own venv in `bench/.venvs`, built once from the package
registry.
"""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "bench" / ".venvs"


class Environment(NamedTuple):
    """What to install, and on which Pythons it is known to work."""

    requirements: tuple[str, ...]
    pythons: tuple[tuple[int, int], ...]


ENVIRONMENTS = {
    "netket": Environment(
        ("netket==3.23.0", "jax==0.10.2", "jaxlib==0.10.2"), ((3, 11), (3, 12), (3, 13))
    ),
    # The last JAX on which its structured derivatives run.
    "neural-tangents": Environment(
        ("neural-tangents==0.6.5", "jax==0.4.23", "jaxlib==0.4.23", "numpy<2", "scipy<1.13"),
        ((3, 11), (3, 12)),
    ),
    "torch": Environment(
        (
            "torch==2.13.0",
            "curvlinops-for-pytorch==3.0.1",
            "nngeometry==0.4",
            "backpack-for-pytorch==1.7.1",
        ),
        ((3, 11), (3, 12), (3, 13)),
    ),
}


class NotAvailable(Exception):
    """An environment that cannot be had, with the reason."""


def _python(environment: Environment) -> str:
    if sys.version_info[:2] in environment.pythons:
        return sys.executable
    for major, minor in environment.pythons:
        found = shutil.which(f"python{major}.{minor}")
        # A launcher may be there without its Python.
        if (
            found
            and not subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode
        ):
            return found
    wanted = " or ".join(f"{major}.{minor}" for major, minor in environment.pythons)
    raise NotAvailable(f"needs Python {wanted}, which is not here")


def python(name: str) -> str:
    """The interpreter of an environment, which is built if need be. Raises `NotAvailable` with the
    reason.
    """
    if name == "ours":
        return sys.executable
    environment = ENVIRONMENTS[name]
    folder = FOLDER / name
    stamp = folder / ".made"
    wanted = "\n".join(environment.requirements)
    interpreter = folder / "bin" / "python"
    if stamp.exists() and stamp.read_text() == wanted:
        return str(interpreter)
    shutil.rmtree(folder, ignore_errors=True)
    print(
        f"Setting up bench/.venvs/{name}: {', '.join(environment.requirements)}",
        file=sys.stderr,
        flush=True,
    )
    install = (
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        *environment.requirements,
    )
    for command in (
        [_python(environment), "-m", "venv", str(folder)],
        [str(interpreter), *install],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            shutil.rmtree(folder, ignore_errors=True)
            lines = [
                line for line in done.stderr.splitlines() if line.startswith("ERROR")
            ] or done.stderr.splitlines()[-1:]
            raise NotAvailable(f"did not install: {' '.join(lines)[:200]}")
    stamp.write_text(wanted)
    return str(interpreter)
