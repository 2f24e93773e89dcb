"""Results on disk: what stands in the place of a file, and runs that share a folder."""

import dataclasses
import inspect
import json
import os
import signal
import subprocess
import sys
import threading

import pytest

from pullback_lab.papers import Role, Row, Verdict
from pullback_lab.report import files, result
from pullback_lab.report.result import Damaged, Result, load, save

ROW = Row("error", 1e-12, "<=", 1e-9, True, Role.STATED)
GOOD = Result(
    name="good",
    source="ours",
    place="page 1",
    statement="It holds.",
    correction="",
    recorded=Verdict.HOLDS,
    rows=(ROW,),
    verdict=Verdict.HOLDS,
    seconds=1.0,
    stamp={},
    date="today",
)
PICTURES = {"png": b"a picture", "svg": b"another"}


@pytest.fixture
def store(tmp_path):
    save(GOOD, tmp_path, PICTURES)
    assert load(tmp_path, "good").rows == (ROW,)
    return tmp_path


def sealed(text):
    """A file whose checksum is right, whatever it contains."""
    content = json.loads(text)
    return json.dumps({"checksum": result.digest(result._json(content)), "result": content})


DEEP = "[" * 100_000 + "]" * 100_000
SHALLOW = "[" * 900 + "]" * 900


@pytest.mark.parametrize(
    "text",
    [
        DEEP,
        "[" * 100_000,
        '{"result": ' * 50_000,
        f'{{"checksum": "", "result": {SHALLOW}}}',
        sealed("[[[]]]"),
        sealed('{"pictures": {}, "name": "good"}'),
        sealed('{"pictures": [], "name": "good"}'),
        "null",
        "3",
        "",
        "\udcff",
    ],
    ids=range(11),
)
def test_what_is_no_result_is_damaged_and_nothing_else(store, text):
    (store / "good.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(Damaged):
        load(store, "good")


def test_data_that_are_nested_too_deeply_to_be_decoded(store):
    nested = []
    for _ in range(400):
        nested = [nested]
    save(dataclasses.replace(GOOD, data={"x": nested}), store, PICTURES)
    limit = sys.getrecursionlimit()
    depth = len(inspect.stack())
    try:
        sys.setrecursionlimit(depth + 150)
        with pytest.raises(Damaged):
            load(store, "good")
    finally:
        sys.setrecursionlimit(limit)
    assert load(store, "good").name == "good"


def test_numbers_that_are_too_large(store):
    content = GOOD.plain() | {"data": {}, "pictures": {}}
    content["rows"][0]["measured"] = 10**400
    (store / "good.json").write_text(sealed(json.dumps(content)))
    with pytest.raises(Damaged, match="OverflowError"):
        load(store, "good")


@pytest.mark.parametrize("kind", ["json", "png", "svg"])
def test_a_folder_in_the_place_of_a_file(store, kind):
    path = store / f"good.{kind}"
    path.unlink()
    path.mkdir()
    (path / "inside").write_text("mine")
    with pytest.raises(Damaged, match="folder" if kind == "json" else "missing"):
        load(store, "good")
    save(GOOD, store, PICTURES)
    assert load(store, "good").name == "good"
    (aside,) = store.glob(f"good.{kind}.aside-*")
    assert (aside / "inside").read_text() == "mine"
    # And without a picture, whose place must be empty then.
    (store / "good.png").unlink()
    (store / "good.png").mkdir()
    save(GOOD, store)
    assert not (store / "good.png").exists() and load(store, "good").pictures == {}


def test_a_link_in_the_place_of_a_file_is_not_followed(store, tmp_path_factory):
    secret = tmp_path_factory.mktemp("elsewhere") / "secret"
    secret.write_text("mine")
    (store / "good.json").unlink()
    (store / "good.json").symlink_to(secret)
    (store / ".good.json.1.tmp").symlink_to(secret)
    files.remove_leftovers(store)
    save(GOOD, store, PICTURES)
    assert secret.read_text() == "mine" and not (store / "good.json").is_symlink()
    assert list(store.glob(".*")) == []


CODE = """
import os, pathlib, sys
from pullback_lab.report import files
real = os.fsync
def stopped(descriptor):
    print("written", flush=True)
    sys.stdin.readline()
    real(descriptor)
os.fsync = stopped
files.write_whole(pathlib.Path(sys.argv[1]) / "slow.json", b"whole")
"""


def writer(store):
    """A process that has written its temporary file, and waits."""
    words = [sys.executable, "-c", CODE, str(store)]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"written\n"
    return process


def test_a_starting_run_leaves_the_files_of_a_live_one(store):
    process = writer(store)
    assert len(list(store.glob(".*.tmp"))) == 1
    files.remove_leftovers(store)
    assert len(list(store.glob(".*.tmp"))) == 1
    process.communicate(b"\n")
    assert process.returncode == 0 and (store / "slow.json").read_bytes() == b"whole"
    assert list(store.glob(".*")) == []


def test_a_starting_run_removes_the_files_of_a_killed_one(store):
    process = writer(store)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert len(list(store.glob(".*.tmp"))) == 1
    (store / ".folder.tmp").mkdir()
    os.mkfifo(store / ".pipe.tmp")
    files.remove_leftovers(store)
    assert {path.name for path in store.glob(".*")} <= {".folder.tmp", ".pipe.tmp"}
    assert not (store / "slow.json").exists()


def test_writers_and_starting_runs_at_the_same_time(tmp_path):
    """The moment between the making of a file and its lock is not lost."""
    ended = threading.Event()

    def clean():
        while not ended.is_set():
            files.remove_leftovers(tmp_path)

    cleaners = [threading.Thread(target=clean) for _ in range(2)]
    for cleaner in cleaners:
        cleaner.start()
    try:
        for number in range(200):
            files.write_whole(tmp_path / f"{number}.json", b"whole")
    finally:
        ended.set()
        for cleaner in cleaners:
            cleaner.join()
    assert len(list(tmp_path.glob("*.json"))) == 200


def test_without_locks_nothing_is_removed(store, monkeypatch):
    monkeypatch.setattr(files, "fcntl", None)
    (store / ".good.json.1.tmp").touch()
    files.remove_leftovers(store)
    files.write_whole(store / "a.json", b"whole")
    assert [path.name for path in store.glob(".*")] == [".good.json.1.tmp"]
