"""Measures what the pages of figures in docs/ hold, and writes their tables and drawings.

`python -m bench.pages` runs what performance.md and nexmark.md have, in about a quarter of an hour on a quiet machine;
names of pages or of runs choose others. `--list` says what there is; runs that take long are run by name only. What is
measured replaces what was known of the same run in bench/figures.jsonl, from which everything is written. `--tables`
only writes; `--check` writes nothing, and returns 1 if a page isn't what the file says.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.drawings import dots
from bench.page_runs import DRAWINGS, PAGES, RUNS, USUAL, Run
from bench.page_tables import Line
from bench.trickle import unit_us
from penstock import __version__

ROOT = Path(__file__).parent.parent
FIGURES = ROOT / "bench" / "figures.jsonl"
BEGIN, END = "<!-- figures: {} -->", "<!-- end of figures -->"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and writes; returns 1 if a run failed, or a page isn't current."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.pages", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="PAGE|RUN", help=f"{', '.join(PAGES)}, or runs")
    parser.add_argument("--list", action="store_true", help="print the runs and their commands")
    parser.add_argument("--tables", action="store_true", help="measure nothing")
    parser.add_argument("--check", action="store_true", help="measure and write nothing")
    parser.add_argument("--flink-python", type=Path, help="a Python that has apache-flink; without: no Flink")
    options = parser.parse_args(arguments)
    unknown = sorted({*options.names} - {*PAGES, *RUNS})
    if unknown:
        raise SystemExit(f"no page or run {', '.join(unknown)}; there are {', '.join((*PAGES, *RUNS))}")
    if options.list:
        sys.stdout.writelines(f"{name} ({run.page}{', long' if run.long else ''}): {'; '.join(run.commands)}\n"
                              for name, run in RUNS.items())
        return 0
    failed = False
    if not (options.tables or options.check):
        for name in chosen(options.names):
            failed |= not taken(name, options.flink_python)
    stale = [path for path, text in written(known()).items() if not path.exists() or path.read_text("utf-8") != text]
    if options.check:
        sys.stdout.writelines(f"not current: {path.relative_to(ROOT)}\n" for path in stale)
        return 1 if stale else 0
    for path, text in written(known()).items():
        path.write_text(text, "utf-8")
    return 1 if failed else 0


def chosen(names: Sequence[str]) -> list[str]:
    """Returns the runs that are meant: those that are named, and of a page that is named those that aren't long."""
    wanted = names or USUAL
    return [name for name, run in RUNS.items() if name in wanted or (run.page in wanted and not run.long)]


def known(path: Path | None = None) -> dict[str, list[dict[str, Any]]]:
    """Returns what is known of each run: first what is said about it, then its lines."""
    path = path or FIGURES
    runs: dict[str, list[dict[str, Any]]] = {}
    for text in path.read_text("utf-8").splitlines() if path.exists() else ():
        line = json.loads(text)
        runs.setdefault(line.pop("run"), []).append(line)
    return runs


def taken(name: str, flink_python: Path | None) -> bool:
    """Runs a run; returns whether all of it was measured.

    What fails is told, and the rest is kept. A command that ends before it is through leaves what was known as it is.
    """
    run = RUNS[name]
    about = {"at": f"{datetime.now(UTC):%Y-%m-%d}", "commands": list(run.commands), "penstock": __version__,
             "cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1), "unit_us": round(unit_us(), 1)}
    began, whole = time.monotonic(), True
    lines = []
    for command in run.commands:
        sys.stderr.write(f"{time.strftime('%H:%M:%S')} {name}: {command}\n")
        words = [sys.executable, "-m", *shlex.split(command)]
        if run.with_flink and flink_python is not None:
            words += ["--flink-python", str(flink_python)]
        done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
        said = [json.loads(text) for text in done.stdout.splitlines()]
        failed = [line for line in said if "failed" in line]
        if done.returncode or failed:
            whole = False
            sys.stderr.write(f"{name} ended with {done.returncode}: {json.dumps(failed)}\n")
            if not failed:
                return False
        lines += [line for line in said if "failed" not in line]
    keep(name, [{**about, "seconds": round(time.monotonic() - began)}, *lines])
    return whole


def keep(name: str, lines: Sequence[Line], path: Path | None = None) -> None:
    """Puts what was measured into the file, in the place of what was known of the run."""
    path = path or FIGURES
    runs = {**known(path), name: lines}
    text = "".join(json.dumps({"run": each, **line}, ensure_ascii=False) + "\n"
                   for each in RUNS if each in runs for line in runs[each])
    new = path.with_suffix(".new")
    new.write_text(text, "utf-8")
    new.replace(path)


def written(runs: Mapping[str, Sequence[Line]]) -> dict[Path, str]:
    """Returns the pages and drawings as the runs have them, by their paths."""
    files = {}
    for page in PAGES:
        path = ROOT / "docs" / f"{page}.md"
        text = path.read_text("utf-8")
        for name, run in RUNS.items():
            if run.page == page:
                text = replaced(text, name, block(run, runs[name]) if name in runs else "")
        files[path] = text
    for name, drawing in DRAWINGS.items():
        if rows := drawing.values(runs.get(drawing.run, ())[1:]):
            files[ROOT / "docs" / "images" / f"{name}.svg"] = dots(drawing.title, rows, drawing.names)
    return files


def block(run: Run, lines: Sequence[Line]) -> str:
    """Returns the tables of a run, and how it was measured."""
    about, *measured = lines
    tables = [(table.title, text) for table in run.tables if (text := table.text(measured))]
    return "\n".join([*(f"**{title}**\n\n{text}" if title else text for title, text in tables), _caption(about)]) + "\n"


def _caption(about: Line) -> str:
    commands = " and ".join(f"`python -m {command}`" for command in about["commands"])
    day = f", {about['at']}" if about.get("at") else ""
    return f"{commands}{day}. {about['cores']} cores{''.join(_said(about))}."


def _said(about: Line) -> Iterator[str]:
    if about.get("unit_us"):
        yield f", a unit takes {about['unit_us']} µs"
    if about.get("load") is not None:
        yield f", load average {about['load']}"
    if about.get("note"):
        yield f", {about['note']}"


def replaced(page: str, name: str, text: str) -> str:
    """Returns the page with `text` as the figures of a run. Raises ValueError if it has no place for them."""
    before, begin, rest = page.partition(BEGIN.format(name))
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"there is no {BEGIN.format(name)} with an end")
    return f"{before}{begin}\n\n{text}\n{end}{after}" if text else f"{before}{begin}\n{end}{after}"


if __name__ == "__main__":
    sys.exit(main())
