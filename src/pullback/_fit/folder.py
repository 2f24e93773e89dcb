"""A folder that one run at a time may write to: a lock, and files that are whole or absent.

The lock is `flock` on the file `.lock`. The kernel releases it when the process ends, however it
ends, so a lock file that a killed process left behind is taken over. While the lock is held, every
temporary file in the folder belongs to a dead run.

Symbolic links inside the folder are not followed: a planted link can neither redirect what is
written nor be read as a checkpoint.
"""

import contextlib
import errno
import json
import os
import secrets
import socket
import stat
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .sealed import Damaged
from .warn import warn

try:
    import fcntl
except ModuleNotFoundError:  # not on Windows, where folders are not locked
    fcntl = None

SAFE = 0
"""Flags of `os.open`: follows no link, is closed in other programs, does not wait for a pipe."""
for _flag in ("O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK", "O_BINARY"):
    SAFE |= getattr(os, _flag, 0)  # not all of them on every system
LEFTOVERS = (".step-*.ckpt.*.tmp", ".begun.json.*.tmp")
UNSUPPORTED = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL}
"""What `flock` fails with on file systems that have no locks."""

_held: set[int] = set()


class InUse(RuntimeError):
    """Another run holds the folder."""


def _after_fork() -> None:
    """Close the locks in a forked child, which would otherwise keep those of a dead parent."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Folder:
    """A folder that this run holds, from `acquire` to `release`."""

    def __init__(self, path: Path):
        """Name a folder."""
        self.path = path
        self.lock = path / ".lock"
        self.descriptor: int | None = None

    def acquire(self) -> None:
        """Make the folder if there is none, and lock it.

        Raises a `ValueError` if the folder cannot be written, `InUse` if another run holds it.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.descriptor = self._locked()
        except (OSError, ValueError) as failure:
            self.release()
            raise ValueError(
                f"fit(checkpoint={str(self.path)!r}): the folder cannot be written ({failure}). "
                'Name another folder, e.g. fit(checkpoint="run/").'
            ) from failure
        for leftover in (path for pattern in LEFTOVERS for path in self.path.glob(pattern)):
            remove(leftover)

    def renew(self) -> None:
        """Lock the folder again if it was deleted and made again since."""
        if self.descriptor is None or not _same(self.descriptor, self.lock):
            self.path.mkdir(parents=True, exist_ok=True)
            held = self._locked()
            self._close()
            self.descriptor = held

    def release(self) -> None:
        """Unlock the folder."""
        if self.descriptor is not None and _same(self.descriptor, self.lock):
            # While it is locked: whoever opened the file meanwhile sees that it is gone.
            remove(self.lock)
        self._close()

    def _close(self) -> None:
        if self.descriptor is not None:
            _held.discard(self.descriptor)
            os.close(self.descriptor)
            self.descriptor = None

    def _locked(self) -> int:
        """Return a descriptor of the lock file, locked."""
        while True:
            descriptor = os.open(self.lock, os.O_RDWR | os.O_CREAT | SAFE, 0o644)
            try:
                _flock(descriptor, self)
                if not _same(descriptor, self.lock):
                    # Its holder removed the file in between.
                    os.close(descriptor)
                    continue
                owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.time()}
                os.ftruncate(descriptor, 0)
                os.write(descriptor, json.dumps(owner).encode())
            except BaseException:
                os.close(descriptor)
                raise
            _held.add(descriptor)
            return descriptor

    def in_use(self, descriptor: int) -> InUse:
        """Return the error for a folder that another run holds."""
        try:
            owner = json.loads(os.read(descriptor, 1000))
            since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(owner["since"]))
            words = f"process {owner['pid']} on {owner['host']}, since {since}"
        except (OSError, ValueError, KeyError, TypeError):
            words = "another process"
        return InUse(
            f"fit(checkpoint={str(self.path)!r}): {words}, saves a run in this folder. Wait until "
            "that run ends, or name another folder."
        )


def _flock(descriptor: int, folder: Folder) -> None:
    """Lock an open file; raises if another run has locked it."""
    if fcntl is None:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise folder.in_use(descriptor) from None
    except OSError as failure:
        if failure.errno not in UNSUPPORTED:
            raise
        warn(
            f"the folder {folder.path} cannot be locked ({failure}); make sure that no other run "
            "saves there."
        )


def _same(descriptor: int, path: Path) -> bool:
    """Whether a path still names an open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except OSError:
        return False


def read_whole(path: Path) -> bytes:
    """Return the content of a regular file; raises `Damaged` for a link, a folder or a pipe."""
    descriptor = open_regular(path, os.O_RDONLY)
    with open(descriptor, "rb") as file:
        return file.read()


def open_regular(path: Path, flags: int) -> int:
    """Return a descriptor of a regular file; raises `Damaged` for a link, a folder or a pipe."""
    try:
        descriptor = os.open(path, flags | SAFE, 0o644)
    except OSError as failure:
        if failure.errno in (errno.ELOOP, errno.EMLINK):
            raise Damaged("it is a symbolic link, which is not followed") from failure
        if failure.errno in (errno.EISDIR, errno.ENXIO):
            raise Damaged("it is no file") from failure
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Damaged("it is no file")
    return descriptor


def write_whole(path: Path, pieces: Iterable[Any]) -> None:
    """Write a file that is complete and on the disk before it has its name."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | SAFE, 0o644)
    try:
        with open(descriptor, "wb") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        remove(beside)
    sync(path.parent)


def remove(path: Path) -> None:
    """Remove a file that nobody needs; one that cannot be removed does no harm."""
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def sync(folder: Path) -> None:
    """Bring the names in a folder to the disk, where the system can."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)
