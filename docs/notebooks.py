"""`python docs/notebooks.py`: runs docs/notebooks/*.ipynb and writes the page of each for the site.

A notebook is executed from its first cell to its last, with its outputs written back, and
`docs/notebooks/<name>.md` and its figures in `docs/assets/notebooks/` are made from it. `--check`
executes without writing, and exits with 1 if a cell raises or if a page is not that of its
notebook. Names of notebooks after the options select some of them. Needs nbclient and ipykernel.
"""

import base64
import json
import os
import sys
from pathlib import Path

DOCS = Path(__file__).parent
FOLDER = DOCS / "notebooks"
FIGURES = DOCS / "assets" / "notebooks"
KEPT = ("text/html", "image/png", "text/plain")
"""What is kept of an output: others depend on the machine."""


def text(value: str | list[str]) -> str:
    """The text of a cell, which a notebook may keep in lines."""
    return value if isinstance(value, str) else "".join(value)


def shown(output: dict) -> tuple[str, str]:
    """The kind and the content of an output, the richest that there is."""
    if output["output_type"] == "stream":
        return "text/plain", text(output["text"])
    data = output.get("data", {})
    kind = next(kind for kind in ("image/png", "text/html", "text/plain") if kind in data)
    return kind, text(data[kind])


def page(name: str, notebook: dict) -> tuple[str, dict[str, bytes]]:
    """The Markdown page of a notebook that was executed, and its figures by file name."""
    parts, figures = [], {}
    for cell in notebook["cells"]:
        source = text(cell["source"]).strip()
        if cell["cell_type"] == "markdown":
            parts.append(source.replace(".ipynb)", ".md)"))
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            kind, content = shown(output)
            if kind == "image/png":
                file = f"{name}-{len(figures) + 1}.png"
                figures[file] = base64.b64decode(content)
                parts.append(f"![Figure {len(figures)}](../assets/notebooks/{file})")
            elif kind == "text/html":
                parts.append(f'<div class="output">{content.strip()}</div>')
            else:
                parts.append(f"```text\n{content.rstrip()}\n```")
    note = f"This page is the notebook [{name}.ipynb]({name}.ipynb), executed."
    head, *rest = parts
    return "\n\n".join([head, note, *rest]) + "\n", figures


def execute(path: Path) -> dict:
    """The notebook, executed in a fresh kernel; raises if a cell does."""
    import nbformat
    from nbclient import NotebookClient

    # The kernel draws into the notebook, whatever the shell asks for.
    os.environ.pop("MPLBACKEND", None)
    notebook = nbformat.read(path, as_version=4)
    # The folder of the notebook is not the folder of a project: nothing can be imported by chance.
    NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    found = json.loads(nbformat.writes(notebook))
    for cell in found["cells"]:
        cell["metadata"] = {}
        for output in cell.get("outputs", []):
            output["metadata"] = {}
            if "data" in output:
                output["data"] = {k: output["data"][k] for k in KEPT if k in output["data"]}
            if output["output_type"] == "stream":
                output.pop("metadata")
    language = {"name": "python"}
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    found["metadata"] = {"kernelspec": kernel, "language_info": language}
    return found


def sources(notebook: dict) -> list[str]:
    """The cells without their outputs."""
    return [text(cell["source"]) for cell in notebook["cells"]]


def stale(path: Path) -> list[str]:
    """What of the page of a notebook is not as in the notebook."""
    words, figures = page(path.stem, json.loads(path.read_text()))
    markdown = path.with_suffix(".md")
    found = []
    if not markdown.is_file() or markdown.read_text() != words:
        found.append(markdown.name)
    there = {file.name for file in FIGURES.glob(f"{path.stem}-*.png")}
    found += sorted(there ^ set(figures))
    same = lambda file: (FIGURES / file).read_bytes() == figures[file]
    return found + sorted(file for file in there & set(figures) if not same(file))


def differences(found: dict, kept: dict) -> list[str]:
    """The cells whose outputs are of other kinds than those that are kept, with what they say."""
    kinds = lambda cell: [shown(output)[0] for output in cell.get("outputs", [])]
    pairs = enumerate(zip(found["cells"], kept["cells"], strict=True))
    return [
        f"its outputs: cell {k} has {kinds(new)} in place of {kinds(old)}, "
        f"{json.dumps(new.get('outputs', []))[:2000]}"
        for k, (new, old) in pairs
        if kinds(new) != kinds(old)
    ]


def write(path: Path) -> None:
    """Execute a notebook, and write it and its page."""
    notebook = execute(path)
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
    words, figures = page(path.stem, notebook)
    path.with_suffix(".md").write_text(words)
    FIGURES.mkdir(parents=True, exist_ok=True)
    for file in FIGURES.glob(f"{path.stem}-*.png"):
        file.unlink()
    for file, content in figures.items():
        (FIGURES / file).write_bytes(content)


def main(arguments: list[str]) -> int:
    """Run what the command line asks for; 1 if a check fails."""
    names = [name for name in arguments if not name.startswith("-")]
    paths = [path for path in sorted(FOLDER.glob("*.ipynb")) if not names or path.stem in names]
    if "--check" not in arguments:
        for path in paths:
            write(path)
        return 0
    bad = 0
    for path in paths:
        old = stale(path)
        old += differences(execute(path), json.loads(path.read_text()))
        print(f"{path.name}: " + (f"not up to date: {', '.join(old)}" if old else "as executed"))
        bad += bool(old)
    return min(bad, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
