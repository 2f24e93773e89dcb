"""Checkpoints: whatever happens to a file, the same bits come back or none."""

import errno
import hashlib
import json
import os
from importlib.metadata import PackageNotFoundError

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from walk import OPT, START, bits, run

import pullback as pb
from pullback._fit import checkpoint as _checkpoint
from pullback._fit import folder as _folder
from pullback._fit import run as _fit
from pullback._fit.checkpoint import parse
from pullback._fit.ledger import read_ledger
from pullback._fit.sealed import Damaged, seal, unseal


def resealed(path, change):
    """Write a file again with another manifest or other arrays, under a checksum that is right."""
    manifest, arrays = unseal(path.read_bytes())
    manifest, arrays = change(manifest, arrays)
    path.write_bytes(b"".join(seal(manifest, arrays)))


def test_a_resumed_run_has_the_bits_of_a_whole_one(saved, whole):
    assert bits(run(saved, 8)) == whole
    assert bits(run(saved, 8)) == whole  # done before


def test_every_single_bit_of_a_small_file_counts():
    content = b"".join(seal({"step": 3}, {"x": np.arange(3.0), "y": np.ones((2, 0))}))
    manifest, arrays = unseal(content)
    assert manifest == {"step": 3} and arrays["x"].tolist() == [0, 1, 2]
    assert arrays["y"].shape == (2, 0)
    for place in range(8 * len(content)):
        changed = bytearray(content)
        changed[place // 8] ^= 1 << place % 8
        with pytest.raises(Damaged):
            unseal(bytes(changed))
    for length in range(len(content)):
        with pytest.raises(Damaged):
            unseal(content[:length])
    with pytest.raises(Damaged):
        unseal(content + b"\0")


def sealed(text, data=b""):
    """A file with any text in the place of its manifest, and a checksum that is right."""
    body = b"pullback checkpoint 2\n" + len(text).to_bytes(8, "little") + text + data
    return body + hashlib.sha256(body).digest()


@pytest.mark.parametrize(
    "content, words",
    [
        (b"", "does not begin"),
        (b"PK\x03\x04 an npz file", "does not begin"),
        (sealed(b"not JSON"), "manifest is not one"),
        (sealed(b"[1, 2]"), "manifest is not one"),
        (sealed(b"3"), "manifest is not one"),
        (sealed(b"[" * 100_000), "manifest is not one"),
        (sealed(b"\xff\xfe"), "manifest is not one"),
        (sealed(b'{"step": 1}'), "manifest is not one"),
        (sealed(b'{"stored": {"a": 1}}'), "manifest is not one"),
        (sealed(b'{"stored": [["a", "float99", [1]]]}'), "manifest is not one"),
        (sealed(b'{"stored": [["a", "object", [1]]]}', bytes(8)), "no array of numbers"),
        (sealed(b'{"stored": [["a", "float64", [-1]]]}'), "no array of numbers"),
        (sealed(b'{"stored": [["a", "float64", [1000000000000000]]]}'), "lists 80000000"),
        (sealed(b'{"stored": [["a", "float64", [1e400]]]}'), "manifest is not one"),
        (sealed(b'{"stored": [["a", "float64", [1]], ["a", "int8", [0]]]}', bytes(8)), "twice"),
        (sealed(b'{"stored": []}'), "no 'pullback'"),
        (sealed(b"{}")[:-40] + sealed(b"{}")[-32:], "cut off"),
    ],
)
def test_what_is_no_checkpoint_is_damaged_and_nothing_else(content, words):
    with pytest.raises(Damaged, match=words):
        parse(content)


@pytest.mark.parametrize(
    "damage, words",
    [
        (lambda f: f.write_bytes(f.read_bytes()[:-200]), "checksum does not match"),
        (lambda f: f.write_bytes(b""), "does not begin"),
        (lambda f: f.write_bytes(sealed(b"[]")), "manifest is not one"),
        (lambda f: (f.unlink(), f.mkdir()), "it is no file"),
        (lambda f: (f.unlink(), os.mkfifo(f)), "it is no file"),
        (
            lambda f: resealed(f, lambda m, a: (m, {x: y for x, y in a.items() if "w" not in x})),
            r"not those of its manifest \(params\['w'\]\)",
        ),
        (lambda f: resealed(f, lambda m, a: (m, a | {"more": np.ones(2)})), r"\(more\)"),
        (
            lambda f: resealed(f, lambda m, a: (m, a | {"params['w']": np.ones((3, 2), "f4")})),
            r"stored as float32\[3, 2\], its manifest lists float64\[3, 2\]",
        ),
        (
            lambda f: resealed(f, lambda m, a: (m, a | {"params['w']": np.ones((10, 10))})),
            r"stored as float64\[10, 10\]",
        ),
    ],
)
def test_a_damaged_file_is_set_aside_and_the_one_before_is_used(saved, whole, damage, words):
    newest = saved / "step-000000006.ckpt"
    damage(newest)
    with pytest.warns(pb.FitWarning, match=f"(?s){words}.*set aside as .*damaged.*before is used"):
        fit = run(saved, 8)
    assert bits(fit) == whole
    names = {"step-000000006.ckpt", "step-000000008.ckpt", "history.rows"}
    assert set(os.listdir(saved)) - {"step-000000006.ckpt.damaged"} == names
    assert bits(run(saved, 8)) == whole  # and without a warning


def test_other_files_are_let_alone(saved, whole):
    newest = saved / "step-000000006.ckpt"
    for name in ("step-best.ckpt", "step-6.ckpt", "step-.ckpt", "step-00000000²3.ckpt"):
        (saved / name).write_text("mine")
    (saved / "step-000000009.ckpt").write_bytes(newest.read_bytes())
    with pytest.warns(pb.FitWarning, match="it is the checkpoint of step 6.*set aside"):
        assert bits(run(saved, 8)) == whole
    assert (saved / "step-best.ckpt").read_text() == "mine"
    assert run(saved, 8).steps == 8


def test_a_damaged_file_does_not_count_among_those_that_are_kept(saved, whole):
    (saved / "step-000000006.ckpt").write_bytes(b"?")
    with pytest.warns(pb.FitWarning, match="set aside"):
        run(saved, 5, keep=1)
    assert [f.name for f in pb.Checkpoints(saved).files()] == ["step-000000005.ckpt"]
    assert bits(run(saved, 8)) == whole


def test_nothing_but_damage_is_refused(saved):
    for file in pb.Checkpoints(saved).files():
        file.write_bytes(file.read_bytes()[:-1])
    before = sorted(os.listdir(saved))
    with pytest.raises(ValueError, match=r"(?s)no checkpoint in .*step-000000006.*step-000000004"):
        run(saved, 8)
    assert sorted(os.listdir(saved)) == before


def test_the_history_is_checked_too(saved, whole):
    rows = saved / "history.rows"
    good = rows.read_bytes()
    # The end belongs to the newest checkpoint only.
    rows.write_bytes(good[:-1])
    with pytest.warns(pb.FitWarning, match="history.rows is damaged: it has .*before is used"):
        assert bits(run(saved, 8)) == whole
    # The beginning belongs to all.
    changed = bytearray(rows.read_bytes())
    changed[40] ^= 4
    rows.write_bytes(changed)
    with pytest.raises(ValueError, match=r"delete history.rows to resume without the records"):
        run(saved, 8)
    rows.unlink()
    with pytest.warns(pb.FitWarning, match="the records of its first 8 steps are lost"):
        fit = run(saved, 10)
    straight = pb.fit(OPT, START, None, 10)
    assert bits(fit)[:4] == bits(straight)[:4] and list(fit.history["step"]) == [8, 9]


@pytest.mark.parametrize(
    "header",
    [
        "no JSON",
        "[]",
        "3",
        '{"rows": 1}',
        '{"columns": []}',
        '{"rows": -1, "columns": [["step", "int64"]]}',
        '{"rows": "1", "columns": [["step", "int64"]]}',
        '{"rows": 1000000000000000, "columns": [["step", "int64"]]}',
        '{"rows": 1, "columns": [["step", "float99"]]}',
        '{"rows": 1, "columns": [["loss", "float64"]]}',
    ],
)
def test_what_is_no_history_is_damaged_and_nothing_else(tmp_path, header):
    content = len(header).to_bytes(4, "little") + header.encode() + bytes(8)
    (tmp_path / "history.rows").write_bytes(content)
    sealed = {"rows": 1, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    with pytest.raises(Damaged):
        read_ledger(tmp_path / "history.rows", sealed)
    for other in ({}, None, sealed | {"bytes": 10**15}, sealed | {"bytes": "many"}):
        with pytest.raises(Damaged):
            read_ledger(tmp_path / "history.rows", other)


def test_bytes_after_the_history_are_those_of_a_killed_run(saved, whole):
    with open(saved / "history.rows", "ab") as file:
        file.write(b"half a segment")
    assert bits(run(saved, 8)) == whole
    assert bits(run(saved, 8)) == whole


def test_a_history_whose_columns_change(tmp_path):
    batches = [(jnp.ones(2, dtype),) for dtype in ("f4", "f4", "f8", "f8")]

    class Adding(eqx.Module):
        def init(self, params):
            return None

        def step(self, params, state, batch):
            return params, state, {"loss": jnp.sum(batch.inputs), "z": jnp.asarray(1j)}

    with pytest.warns(pb.FitWarning, match="change their shape"):
        whole = pb.fit(Adding(), jnp.ones(1), batches, 4)
    saving = pb.Checkpoints(tmp_path, every_steps=1)
    lines = tmp_path / "run.jsonl"
    for steps in (2, 4):
        fit = pb.fit(Adding(), jnp.ones(1), batches, steps, checkpoint=saving, telemetry=lines)
    assert fit.history["loss"].dtype == whole.history["loss"].dtype == np.float64
    assert fit.history["loss"].tobytes() == whole.history["loss"].tobytes()
    assert json.loads(lines.read_text().splitlines()[3])["z"] == [0.0, 1.0]
    again = pb.fit(Adding(), jnp.ones(1), batches, 4, checkpoint=saving)
    assert again.history["z"].tobytes() == whole.history["z"].tobytes()


def test_a_save_costs_the_same_after_any_number_of_steps(tmp_path, monkeypatch):
    sizes = []
    replace = os.replace

    def measured(source, target):
        sizes.append(os.stat(source).st_size)
        replace(source, target)

    monkeypatch.setattr(_folder.os, "replace", measured)
    pb.fit(OPT, START, None, 400, checkpoint=pb.Checkpoints(tmp_path, every_steps=20))
    assert len(sizes) == 20 and max(sizes) - min(sizes) < 20  # digits of the counts
    # Two columns of 8 bytes, and the headers of 20 saves.
    assert os.stat(tmp_path / "history.rows").st_size < 400 * 16 + 20 * 20 + 100


def test_a_checkpoint_that_could_not_be_written_is_written_at_the_end(tmp_path, monkeypatch, whole):
    fsync = os.fsync
    left = iter([True, True, True])

    def full(descriptor):
        if next(left, False):
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(_folder.os, "fsync", full)
    saving = pb.Checkpoints(tmp_path, every_steps=4)
    with pytest.warns(pb.FitWarning, match="step 4 could not be written.*No space"):
        pb.fit(OPT, START, None, 6, checkpoint=saving)
    monkeypatch.undo()
    assert bits(run(tmp_path, 8)) == whole


def test_an_error_in_a_callback_does_not_lose_the_run(tmp_path, whole):
    def fall(report):
        if report.step >= 3:
            raise ZeroDivisionError

    lines = tmp_path / "run.jsonl"
    with pytest.raises(ZeroDivisionError):
        pb.fit(OPT, START, None, 8, checkpoint=tmp_path, telemetry=lines, callback=fall)
    assert len(pb.Checkpoints(tmp_path).files()) == 1
    assert bits(pb.fit(OPT, START, None, 8, checkpoint=tmp_path, telemetry=lines)) == whole
    assert len(lines.read_text().splitlines()) == 8


def test_more_steps_than_asked_for_are_refused(saved):
    with pytest.raises(ValueError, match=r"steps=4.* has 6 steps.*fit\(steps=6\)"):
        run(saved, 4)
    assert run(saved, 6).ended == "all 6 steps were made"


def test_files_of_the_old_format_are_refused_by_name(tmp_path):
    np.savez(tmp_path / "step-000000003.npz", manifest=np.zeros(3))
    with pytest.raises(ValueError, match=r"pullback 0\.1.*Resume with that version"):
        run(tmp_path, 4)


def test_other_versions_and_machines_are_warned_of(saved, monkeypatch):
    monkeypatch.setattr(_checkpoint.jax, "default_backend", lambda: "abacus")
    with pytest.warns(pb.FitWarning, match="written with backend cpu, this is abacus"):
        run(saved, 8)


def test_sources_that_are_not_installed_have_checkpoints_too(tmp_path, monkeypatch, whole):
    def version(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(_checkpoint, "version", version)
    run(tmp_path, 4)
    assert bits(run(tmp_path, 8)) == whole


def test_writing_of_a_bad_option():
    with pytest.raises(ValueError, match="compare must be True or False"):
        pb.Checkpoints("a", compare=3)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize(
    "place",
    [
        (_checkpoint.Ledger, "append"),
        (_checkpoint.Ledger, "_write"),
        (_checkpoint, "write_whole"),
        (_checkpoint.Store, "save"),
        (_fit.Telemetry, "append"),
        (_fit.Telemetry, "write"),
        (_fit, "columns_of"),
        (_fit, "run_chunk"),
        (_fit, "Snapshot"),
    ],
    ids=lambda place: place[1],
)
def test_interrupts_at_any_place(tmp_path, monkeypatch, whole, place, moment):
    """Ctrl-C in the middle of the books: nothing is written twice, nothing is left out."""
    real = getattr(*place)
    calls = iter(range(100))

    def interrupted(*args, **options):
        now = next(calls) == 2
        if now and moment == "before":
            raise KeyboardInterrupt
        result = real(*args, **options)
        if now:
            raise KeyboardInterrupt
        return result

    saving = pb.Checkpoints(tmp_path / "run", every_steps=1)
    lines = tmp_path / "run.jsonl"
    monkeypatch.setattr(*place, interrupted)
    fit = pb.fit(OPT, START, None, 8, checkpoint=saving, telemetry=lines)
    monkeypatch.undo()
    assert fit.ended == "interrupted" and 0 < fit.steps == len(fit.history) < 8
    assert len(lines.read_text().splitlines()) == fit.steps
    assert saving.files()[0].name == f"step-{fit.steps:09d}.ckpt"
    again = pb.fit(OPT, START, None, 8, checkpoint=saving, telemetry=lines)
    assert bits(again) == whole
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(8))
    assert [row["loss"] for row in rows] == again.history["loss"].tolist()
