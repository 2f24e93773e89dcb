"""`pullback keys`: verdicts from other random keys, resumed, and as a table."""

import pytest
from typer.testing import CliRunner

import pullback_lab.cli as cli
import pullback_lab.report.keys as _keys


@pytest.fixture
def keys(folder):
    return lambda *words: CliRunner().invoke(
        cli.app, ["keys", "--out", str(folder / "keys"), *words]
    )


def test_shares_of_keys_and_claims_that_do_not_depend_on_them(keys, tmp_path):
    done = keys("chancy", "good", "wrong", "--count", "6")
    assert done.exit_code == 0, done.output
    table = (tmp_path / "keys" / "keys.md").read_text()
    assert "3 claims, of which 1 depend on the random key; 1 of them had another verdict" in table
    [line] = [line for line in table.splitlines() if line.startswith("| `chancy`")]
    name, recorded, count, agreeing, number = (cell.strip() for cell in line.split("|")[1:-1])
    assert (name, recorded, count) == ("`chancy`", "holds", "6")
    right, other = agreeing.split("; does not hold ")
    assert int(right) + int(other) == 6 and int(right) > 0 and int(other) > 0
    assert number.startswith("a number: 0.")
    assert "The same from every key: `good`, `wrong`." in table
    # Every number has its interval: of what depends on the key, the least and the largest.
    numbers = (tmp_path / "keys" / "numbers.md").read_text()
    assert "## chancy" in numbers and "## good" not in numbers
    [line] = [line for line in numbers.splitlines() if line.startswith("| a number")]
    _, role, bound, least, largest, holds = (cell.strip() for cell in line.split("|")[1:-1])
    assert (role, bound) == ("as stated", "≤ 0.5") and float(least) <= 0.5 < float(largest)
    assert number == f"a number: {least} to {largest}" and holds == f"{int(right)} of 6"
    # Two keys tell that the numbers are the same.
    assert [(tmp_path / f"{n}.runs").read_text() for n in ("good", "chancy")] == ["xx", "x" * 6]
    # One process runs all keys of a claim: it compiles once.
    assert len(set((tmp_path / "chancy.processes").read_text().split())) == 1

    again = keys("chancy", "good", "wrong", "--count", "7")
    assert again.exit_code == 0
    assert (tmp_path / "chancy.runs").read_text() == "x" * 7
    assert (tmp_path / "good.runs").read_text() == "xx"


def test_a_claim_that_says_more_than_its_keys_give(keys, tmp_path, monkeypatch):
    done = keys("chancy", "wrong", "--count", "20")
    assert done.exit_code == 1
    assert done.output.splitlines()[-1].endswith("than the claim says: chancy.")
    # Other keys than those that the claim speaks of decide nothing.
    assert keys("chancy", "--count", "19").exit_code == 0


def test_unknown_names_and_too_few_keys(keys):
    assert keys("god").exit_code == 2
    assert keys("good", "--count", "1").exit_code == 2


def test_a_claim_whose_process_dies_is_run_from_the_other_keys_too(keys, tmp_path):
    done = keys("dying", "chancy", "--count", "2")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "dying.runs").read_text() == "xx"
    assert (tmp_path / "chancy.runs").read_text() == "xx"


def test_what_is_finished_before_an_interruption_is_in_the_table(keys, tmp_path, monkeypatch):
    assert keys("good", "chancy", "--count", "3").exit_code == 0

    def ended(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(_keys, "run_all", ended)
    done = keys("good", "chancy", "wrong", "--count", "3")
    assert done.exit_code == 130 and "same command resumes" in done.output
    table = (tmp_path / "keys" / "keys.md").read_text()
    assert "The run was interrupted" in table and "| `chancy`" in table and "`wrong`" not in table
