"""Files that are whole or absent, although several runs may share a folder.

A file is written under a temporary name and renamed. The writer holds a lock (`flock`) on its
temporary file, which the kernel releases when the process ends, however it ends. A temporary file
without a lock is therefore what a dead process left behind, and can be removed; the files of live
runs, of this machine or of another, are left alone.
"""

import contextlib
import os
import secrets
from pathlib import Path

try:
    import fcntl
except ModuleNotFoundError:  # not on Windows, where nothing is removed
    fcntl = None

NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL
SAFE = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
"""A planted link is not followed, a pipe is not waited for."""
TEMPORARY = ".*.tmp"
ASIDE = "aside"


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically: the file is complete or absent. A folder of its name is set aside.

    Raises `OSError` if the file cannot be written.
    """
    descriptor, temporary = _temporary(path)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            make_way(path)
            os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def remove(path: Path) -> None:
    """Remove a file, if there is one. A folder of its name is set aside."""
    make_way(path)
    path.unlink(missing_ok=True)


def make_way(path: Path) -> None:
    """Rename a folder that is in the place of a file; its content may be of value to somebody."""
    if path.is_dir() and not path.is_symlink():
        path.rename(path.with_name(f"{path.name}.{ASIDE}-{secrets.token_hex(4)}"))


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files that dead processes left in a folder."""
    for leftover in folder.glob(TEMPORARY):
        with contextlib.suppress(OSError):
            if leftover.is_symlink():
                leftover.unlink()
                continue
            descriptor = os.open(leftover, os.O_RDWR | SAFE)
            try:
                # Locked before it is removed: its writer may have made it a moment ago.
                if _lock(descriptor, wait=False):
                    leftover.unlink()
            finally:
                os.close(descriptor)


def _temporary(path: Path) -> tuple[int, Path]:
    """Return a descriptor of a new temporary file, locked, and its path."""
    while True:
        temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
        descriptor = os.open(temporary, NEW | SAFE, 0o644)
        _lock(descriptor, wait=True)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), os.lstat(temporary)):
                return descriptor, temporary
        # A starting run took it for a leftover before it was locked.
        os.close(descriptor)


def _lock(descriptor: int, wait: bool) -> bool:
    """Lock an open file; returns whether it is locked now."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:  # held by another process, or a file system without locks
        return False
    return True
