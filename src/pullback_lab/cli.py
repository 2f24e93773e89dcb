"""The command line. No module that imports JAX is imported before a command needs it."""

import difflib
import enum
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

try:
    import typer
except ModuleNotFoundError:
    sys.exit("The command line needs typer and rich: pip install 'pullback[lab]'.")

from .papers import REGISTRY, Budget

app = typer.Typer(
    help="Exact natural gradients: run the claims of the sources and print which of them hold.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Size(enum.Enum):
    """The values of `--budget`."""

    QUICK = "quick"
    FULL = "full"


SEEDS = {Size.QUICK: 1, Size.FULL: 5}
"""The default of `--seeds`."""


@app.command()
def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CLAIM]...", help="Which claims (see `pullback claims`); defaults to all."
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
            help="Repetitions of what is random; defaults to 1 if quick, 5 if full.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run claims, print the verdicts, write a report.

    Finished results are kept in the folder; after Ctrl-C the same command resumes the run. The exit
    code is 1 if a verdict differs from the one on record, 2 if the arguments are invalid, and 130
    after Ctrl-C.
    """
    chosen = _known(names or [])
    _check_writable(out)
    from rich.console import Console

    from .report import publish
    from .report import reproduce as run
    from .report.terminal import Screen, show

    size = Budget(budget is Size.FULL, SEEDS[budget] if seeds is None else seeds)
    with Screen(Console(stderr=True)) as screen:
        report = run(REGISTRY, chosen, out, size, screen)
    console = Console()
    show(report, console if console.is_terminal else Console(width=132))
    typer.echo(f"Report: {publish(report, out)}")
    if not report.complete:
        raise typer.Exit(130)
    if report.differing:
        raise typer.Exit(1)


@app.command()
def keys(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[CLAIM]...", help="Which claims; defaults to all."),
    ] = None,
    count: Annotated[int, typer.Option(min=2, help="How many other keys.")] = 20,
    out: Annotated[Path, typer.Option(help="The folder for results and table.")] = Path("keys"),
) -> None:
    """Run claims, at quick sizes, from other random keys: do the verdicts depend on the key?

    Finished results are kept in the folder; after Ctrl-C the same command resumes the run. The
    table is printed and written to keys.md, the interval of every number to numbers.md. The exit
    code is 1 if 20 keys give fewer verdicts on record than a claim says, 130 after Ctrl-C.
    """
    chosen = _known(names or [])
    _check_writable(out)
    from rich.console import Console

    from .report import vary
    from .report.terminal import Screen

    with Screen(Console(stderr=True)) as screen:
        varied = vary(REGISTRY, chosen, out, count, screen)
    path = out / "keys.md"
    path.write_text(varied.table(), encoding="utf-8")
    (out / "numbers.md").write_text(varied.numbers(), encoding="utf-8")
    typer.echo(varied.table())
    typer.echo(f"Table: {path}")
    if not varied.complete:
        raise typer.Exit(130)
    if varied.fewer:
        typer.echo(f"Fewer verdicts on record than the claim says: {', '.join(varied.fewer)}.")
        raise typer.Exit(1)


@app.command()
def claims() -> None:
    """List the claims: name, verdict on record, statement."""
    from rich.console import Console

    from .report.terminal import listing

    console = Console()
    listing(REGISTRY.values(), console if console.is_terminal else Console(width=160))


@app.command()
def coverage() -> None:
    """Print, as Markdown, every item of every source with its claims and library functions."""
    from .papers._coverage import table

    typer.echo(table(), nl=False)


@app.command()
def bench(
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="Time pullback and the floor only, in two minutes; writes nothing."
        ),
    ] = False,
) -> None:
    """Time the natural gradient against its floor and its peers; needs a checkout with bench/."""
    if not Path("bench/__main__.py").exists():
        typer.echo(
            "The benchmark is not part of the installed package: run `make bench` in a checkout.",
            err=True,
        )
        raise typer.Exit(2)
    command = [sys.executable, "-m", "bench", *(["--quick"] if quick else [])]
    raise typer.Exit(subprocess.run(command, check=False).returncode)


@app.command()
def pde(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...", help="Which equations, e.g. A B Burgers.")
    ],
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each; medians are tabulated.")] = 1,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps of each run; defaults by equation.")
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            help="At most so long for each run; defaults to no limit. On one core, A and B take "
            "about 2 minutes, C and E half an hour, D, F, F' and G hours."
        ),
    ] = None,
    processes: Annotated[int, typer.Option(min=1, help="Runs at a time.")] = 1,
    published: Annotated[
        bool,
        typer.Option(
            "--as-published", help="The published points, initialisation and numbers of SPRING."
        ),
    ] = False,
    no_momentum: Annotated[
        bool, typer.Option("--no-momentum", help="Leave Spring out (D, F, F', G).")
    ] = False,
    memory: Annotated[
        float | None,
        typer.Option(
            help="Average the metric over steps with this weight of the past, e.g. 0.6; at most "
            "4096 parameters."
        ),
    ] = None,
    baselines: Annotated[
        bool,
        typer.Option(
            "--baselines",
            help="Adam + L-BFGS and self-scaled Broyden too, for as long as each run.",
        ),
    ] = False,
    out: Annotated[
        Path, typer.Option(help="The folder for tables, pictures and measurements.")
    ] = Path("pde"),
) -> None:
    """Solve equations; draw and tabulate errors against steps and seconds, beside published ones.

    Tables, pictures and measurements are written to the folder; the same command resumes a run that
    was interrupted or killed.
    """
    from .pde.__main__ import main as run

    words = [*names, "--seeds", str(seeds), "--processes", str(processes), "--out", str(out)]
    words += [] if steps is None else ["--steps", str(steps)]
    words += [] if minutes is None else ["--minutes", str(minutes)]
    words += [] if memory is None else ["--memory", str(memory)]
    words += ["--as-published"] * published + ["--no-momentum"] * no_momentum
    words += ["--baselines"] * baselines
    raise typer.Exit(run(words))


def _known(names: Iterable[str]) -> list[str]:
    """The names without repetition; raises for an unknown name and suggests similar ones."""
    for name in names:
        if name not in REGISTRY:
            wanted = name.lower().replace("_", "-")
            near = difflib.get_close_matches(wanted, REGISTRY, n=3, cutoff=0.5)
            hint = f" Did you mean {' or '.join(near)}?" if near else ""
            raise typer.BadParameter(
                f"there is no claim {name!r}.{hint} `pullback claims` lists them.",
                param_hint="CLAIM",
            )
    return list(dict.fromkeys(names))


def _check_writable(out: Path) -> None:
    """Raise if results cannot be written to a folder, before anything is run."""
    store = out / "claims"
    try:
        store.mkdir(parents=True, exist_ok=True)
        # Without a name, so that no other run takes it for a leftover.
        tempfile.TemporaryFile(dir=store).close()
    except OSError as error:
        raise typer.BadParameter(
            f"cannot write to {store}: {error.strerror}. Name another folder.", param_hint="--out"
        ) from error


def main() -> None:
    """The entry point of the command `pullback`."""
    app(prog_name="pullback")
