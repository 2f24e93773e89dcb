"""Where the examples save their pictures: `pictures/` in the working directory, which git ignores,
or what the command line names.
"""

import sys
from pathlib import Path

FOLDER = Path("pictures")


def given() -> str | None:
    """The first argument of the command line that is not an option."""
    return next((word for word in sys.argv[1:] if not word.startswith("-")), None)


def picture_path(name: str) -> Path:
    """The file for a picture, in a folder that exists."""
    word = given()
    path = FOLDER / name if word is None else Path(word)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def picture_folder() -> Path:
    """The folder for several pictures, made if need be."""
    folder = Path(given() or FOLDER)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def option(name, default):
    """The value of an option `--name=value`."""
    found = [word.split("=", 1)[1] for word in sys.argv[1:] if word.startswith(f"--{name}=")]
    return found[0] if found else default
