"""The command line. Nothing heavy is imported before a command needs it."""

import subprocess
import sys
from pathlib import Path
from typing import Annotated

try:
    import typer
except ModuleNotFoundError:
    sys.exit("The command line needs typer and rich: pip install 'pullback[cli]'.")

app = typer.Typer(
    help="Exact natural gradients: run the worked examples, and see what holds.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command()
def reproduce(
    names: Annotated[list[str] | None, typer.Argument(help="Which examples (see `pullback claims`); all if left out.")] = None,
    out: Annotated[Path, typer.Option(help="The folder the report is written to.")] = Path("report"),
) -> None:
    """Run the worked examples, print what holds, write a report. Exit code 1 if anything does not hold."""
    if out.exists() and not out.is_dir():
        raise typer.BadParameter(f"{out} is a file; name a folder.", param_hint="--out")
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from ._report import page, run, show

    _float64()
    examples = _chosen(names)
    terminal = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal) as progress:
        task = progress.add_task("", total=len(examples))
        started = iter(range(len(examples)))
        report = run(examples, before=lambda example: progress.update(task, completed=next(started), description=example.name))

    console = Console()
    if not console.is_terminal:
        console = Console(width=132)
    show(report, console)
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.json").write_text(report.json(), encoding="utf-8")
    (out / "index.html").write_text(page(report), encoding="utf-8")
    typer.echo(f"Report: {out / 'index.html'}")
    if not report.complete:
        raise typer.Exit(130)
    if not report.holds:
        raise typer.Exit(1)


@app.command()
def claims() -> None:
    """List the examples: name and source."""
    from rich.console import Console
    from rich.table import Table

    table = Table("name", "source", "statement", box=None, pad_edge=False)
    for example in _chosen(None):
        table.add_row(example.name, example.source, example.statement)
    console = Console()
    (console if console.is_terminal else Console(width=160)).print(table)


@app.command()
def bench(
    quick: Annotated[bool, typer.Option("--quick", help="Ours and the floor only, in under two minutes; writes nothing.")] = False,
) -> None:
    """Time the natural gradient against its floor and its peers; from a checkout, where bench/ is."""
    if not Path("bench/__main__.py").exists():
        typer.echo("The benchmark is not part of the installed package: run `make bench` in a checkout.", err=True)
        raise typer.Exit(2)
    raise typer.Exit(subprocess.run([sys.executable, "-m", "bench", *(["--quick"] if quick else [])], check=False).returncode)


def _chosen(names: list[str] | None) -> list:
    from .papers import EXAMPLES

    known = {example.name: example for example in EXAMPLES}
    if unknown := [name for name in names or () if name not in known]:
        raise typer.BadParameter(f"unknown: {', '.join(unknown)}. There are: {', '.join(known)}.", param_hint="NAMES")
    return [known[name] for name in names] if names else list(EXAMPLES)


def _float64() -> None:
    import jax

    jax.config.update("jax_enable_x64", True)


def main() -> None:
    """The entry point of the command `pullback`."""
    app(prog_name="pullback")
