"""The folder of checkpoints: one run at a time, no links, places that cannot be written."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from walk import OPT, START, Walk, bits, run

import pullback as pb
from pullback._fit import folder as _folder
from pullback._fit.folder import Folder


def test_links_are_not_followed(saved, tmp_path_factory, whole):
    secret = tmp_path_factory.mktemp("elsewhere") / "secret"
    secret.write_text("mine")
    # In the place of the next checkpoint, of a temporary file and of the newest checkpoint.
    (saved / "step-000000008.ckpt").symlink_to(secret)
    (saved / ".step-000000010.ckpt.1.aa.tmp").symlink_to(secret)
    with pytest.warns(pb.FitWarning, match="symbolic link, which is not followed"):
        assert bits(run(saved, 8)) == whole
    assert not (saved / "step-000000008.ckpt").is_symlink() and secret.read_text() == "mine"
    for name, words in ((".lock", "cannot be written"), ("history.rows", "symbolic link")):
        (saved / name).unlink(missing_ok=True)
        (saved / name).symlink_to(secret)
        with pytest.raises(ValueError, match=words):
            run(saved, 8)
        (saved / name).unlink()
    assert secret.read_text() == "mine"


def test_a_link_to_a_good_file_is_not_read(saved, tmp_path_factory):
    moved = tmp_path_factory.mktemp("elsewhere") / "good.ckpt"
    for file in pb.Checkpoints(saved).files():
        file.replace(moved)
        file.symlink_to(moved)
    with pytest.raises(ValueError, match="symbolic link, which is not followed"):
        run(saved, 8)


def test_temporary_files_of_dead_runs_are_removed(saved, whole):
    leftovers = [saved / ".step-000000007.ckpt.123.0a1b2c3d.tmp", saved / ".step-1.ckpt.x.tmp"]
    for leftover in leftovers:
        leftover.write_bytes(b"half a checkpoint")
    (saved / ".notes.tmp").write_text("mine")
    assert bits(run(saved, 8)) == whole
    assert not any(map(Path.exists, leftovers)) and (saved / ".notes.tmp").exists()


def test_two_runs_on_one_folder(saved):
    """In one process first: the lock belongs to a run, not to a process."""
    with pytest.raises(RuntimeError, match=f"process {os.getpid()} on .*name another folder"):
        pb.fit(OPT, START, None, 9, checkpoint=saved, callback=lambda r: run(saved, 9))
    run(saved, 10)
    code = (
        "import sys, pathlib; from pullback._fit.folder import Folder; "
        f"f = Folder(pathlib.Path({str(saved)!r})); f.acquire(); print('held', flush=True); "
        "sys.stdin.read()"
    )
    words = [sys.executable, "-c", code]
    other = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert other.stdout.readline() == b"held\n"
        temporary = saved / ".step-000000011.ckpt.1.aa.tmp"
        temporary.touch()
        with pytest.raises(RuntimeError, match=f"process {other.pid} on .* since 20"):
            run(saved, 12)
        assert temporary.exists(), "that of a live run"
    finally:
        other.kill()
        other.communicate()
    # kill -9 left the lock file; it is taken over.
    assert (saved / ".lock").exists()
    assert run(saved, 12).steps == 12 and not (saved / ".lock").exists()


def test_a_forked_child_does_not_keep_the_lock_of_a_dead_parent(tmp_path):
    """Such as a process that loads data."""
    code = f"""
import os, pathlib, signal, sys, warnings
from pullback._fit.folder import Folder
from pullback._fit.ledger import read_ledger
Folder(pathlib.Path({str(tmp_path)!r})).acquire()
warnings.simplefilter("ignore")  # JAX warns of every fork
if os.fork():
    os.kill(os.getpid(), signal.SIGKILL)
print("forked", flush=True)
sys.stdin.read()
"""
    words = [sys.executable, "-c", code]
    child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"forked\n" and child.wait() == -9
    again = Folder(tmp_path)
    again.acquire()
    again.release()
    child.stdin.close()
    child.stdout.close()


def test_file_systems_without_locks(tmp_path, monkeypatch):
    def unsupported(*args):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(_folder.fcntl, "flock", unsupported)
    with pytest.warns(pb.FitWarning, match="cannot be locked.*no other run"):
        assert run(tmp_path, 2).steps == 2
    monkeypatch.setattr(_folder, "fcntl", None)
    assert run(tmp_path, 4).steps == 4


@pytest.mark.parametrize("place", ["a file", "a name that is no name", "no permission"])
def test_a_folder_that_cannot_be_written_is_noticed_at_once(tmp_path, monkeypatch, place):
    folder = tmp_path / "run"
    if place == "a file":
        folder.write_text("mine")
    elif place == "a name that is no name":
        folder = tmp_path / "run\ud800"
    else:

        def refused(*args):
            raise PermissionError(errno.EACCES, "Permission denied")

        monkeypatch.setattr(_folder.os, "open", refused)

    def never(*args):
        raise AssertionError("compiled before the folder was tried")

    monkeypatch.setattr(Walk, "init", never)
    with pytest.raises(ValueError, match=r"the folder cannot be written .*Name another folder"):
        run(folder, 2)


def test_a_folder_that_goes_during_the_run_is_made_again(tmp_path, whole):
    import shutil

    def remove(report):
        if report.step == 4:
            shutil.rmtree(tmp_path / "run")

    saving = pb.Checkpoints(tmp_path / "run", every_steps=2)
    pb.fit(OPT, START, None, 6, checkpoint=saving, callback=remove)
    assert bits(run(tmp_path / "run", 8)) == whole
