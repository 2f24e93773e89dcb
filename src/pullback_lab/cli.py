"""The command line. Nothing heavy is imported before a command needs it."""

import difflib
import enum
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

try:
    import typer
except ModuleNotFoundError:
    sys.exit("The command line needs typer and rich: pip install 'pullback[cli]'.")

REGISTRY = "pullback_lab.papers"

app = typer.Typer(
    help="Exact natural gradients: run the claims of the sources, and see what holds.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Size(enum.Enum):
    """How much may be spent."""

    QUICK = "quick"
    FULL = "full"


SEEDS = {Size.QUICK: 1, Size.FULL: 5}


@app.command()
def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CLAIM]...", help="Which claims (see `pullback claims`); all if left out."
        ),
    ] = None,
    budget: Annotated[
        Size, typer.Option(help="quick: minutes, small sizes. full: the sizes of the papers.")
    ] = Size.QUICK,
    out: Annotated[Path, typer.Option(help="The folder for results and report.")] = Path("report"),
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Repetitions where chance plays a part; 1 if quick, 5 if full.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run claims, print what holds, write a report.

    What is finished is kept in the folder: after Ctrl-C the same command goes on from there. Exit
    code 1 if a verdict differs from the one on record, 2 if the command cannot be run as given, 130
    after Ctrl-C.
    """
    _writable(out)
    from rich.console import Console

    from .papers import Budget
    from .report import Screen, page, publish, show, summary
    from .report import reproduce as run

    chosen = _known(names or [])
    size = Budget(budget is Size.FULL, SEEDS[budget] if seeds is None else seeds)
    errors = Console(stderr=True)
    with Screen(errors) as screen:
        report = run(chosen, REGISTRY, out, size, screen)
    console = Console()
    show(report, console if console.is_terminal else Console(width=132))
    typer.echo(f"Report: {publish(report, out, page, summary)}")
    if not report.complete:
        raise typer.Exit(130)
    if report.differing:
        raise typer.Exit(1)


@app.command()
def claims() -> None:
    """List the claims: name, verdict on record, statement."""
    from rich.console import Console

    from .report import listing

    console = Console()
    listing(_registry(), console if console.is_terminal else Console(width=160))


@app.command()
def bench(
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="Ours and the floor only, in under two minutes; writes nothing."
        ),
    ] = False,
) -> None:
    """Time the natural gradient against its floor and its peers; from a checkout, where bench/ is."""
    if not Path("bench/__main__.py").exists():
        typer.echo(
            "The benchmark is not part of the installed package: run `make bench` in a checkout.",
            err=True,
        )
        raise typer.Exit(2)
    raise typer.Exit(
        subprocess.run(
            [sys.executable, "-m", "bench", *(["--quick"] if quick else [])], check=False
        ).returncode
    )


def _registry() -> dict:
    import importlib

    return importlib.import_module(REGISTRY).claims()


def _known(names: Iterable[str]) -> list[str]:
    """The names without repetition; those that are no claims are refused, with those they may have
    been meant for.
    """
    known = _registry()
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name.lower().replace("_", "-"), known, n=3, cutoff=0.5)
            hint = f" Did you mean {' or '.join(near)}?" if near else ""
            raise typer.BadParameter(
                f"there is no claim {name!r}.{hint} `pullback claims` lists them.",
                param_hint="CLAIM",
            )
    return list(dict.fromkeys(names))


def _writable(out: Path) -> None:
    """Refuse a folder that results cannot be written to, before anything is run."""
    store = out / "claims"
    try:
        store.mkdir(parents=True, exist_ok=True)
        probe = store / ".probe.tmp"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise typer.BadParameter(
            f"cannot write to {store}: {error.strerror}. Name another folder.", param_hint="--out"
        ) from error


def main() -> None:
    """The entry point of the command `pullback`."""
    app(prog_name="pullback")
