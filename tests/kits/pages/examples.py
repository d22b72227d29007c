"""Runs the code blocks of a page of the documentation, one after the other, as a reader would.

The first word of a fence is the language; what may stand behind it:

| info | the block |
|---|---|
| `sql` | statements, for an engine of the page's own, without Spark: its streams rest before the next statement |
| `python`, `bash` | run in an empty folder of the page's own; Python's names stay, calls of `penstock` are run here |
| `text` | what the code before it printed; of SQL, what the last statement gave |
| `text excerpt` | the same, with lines left out |
| `toml`, `json` | read as configuration; read |
| `LANGUAGE file: PATH` | a file, written into the folder of the page |
| `LANGUAGE run-by: tests/FILE.py::TEST` | run by a test of its own, since it takes servers or a Spark |
| `LANGUAGE no-run: REASON` | not run |

A comment whose first line is `<!-- sql`, or another of these, is run as well, and readers don't see it: it makes the
tables that a page takes for granted. With PENSTOCK_UPDATE_GOLDEN=1 the page is given what came out.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.types as types
from kits.basics.commands import run_here
from kits.basics.golden_runner import UPDATE
from kits.basics.places import ROOT
from kits.pages.pages import Block, blocks
from kits.streams.ingest_kit import FakeBroker

from penstock.common.config import load_config
from penstock.mnode.admin.sandbox import Sandbox
from penstock.shell.terminal.result_format import Style, format_table
from penstock.shell.terminal.script import SqlText, split_all

#: When pages are read: 2024-06-01.
NOW_MS = 1_717_200_000_000
_NEEDS_SHELL = frozenset("$`\\")
_OPERATORS = frozenset(("|", "||", "&", "&&", ";", "<", ">", ">>", "(", ")"))
_OPTION = re.compile(r"(?P<language>\w+)(?: (?P<option>excerpt|file|run-by|no-run)(?:: (?P<value>.+))?)?")


@dataclass(frozen=True, slots=True)
class Example:
    """A code block with what its fence says of it: `option` and `value` are "" where there is none."""

    block: Block
    language: str
    option: str
    value: str


class ExampleError(AssertionError):
    """A page shows something that isn't so."""


def examples(page: str) -> list[Example]:
    """Returns the code blocks of a page. Raises ExampleError for a fence that isn't one of those above."""
    found = []
    for block in blocks(page):
        match = _OPTION.fullmatch(block.info)
        if match is None or (match["value"] is None) != (match["option"] in (None, "excerpt")):
            raise ExampleError(f"line {block.line}: {block.info!r} isn't a language and an option of {__name__}")
        found.append(Example(block, match["language"], match["option"] or "", match["value"] or ""))
    return found


def shown_in(path: Path, language: str) -> list[str]:
    """Returns the blocks of a page in one language, for tests that run them themselves."""
    return [example.block.text for example in examples(path.read_text("utf-8")) if example.language == language]


def files(path: Path) -> dict[str, str]:
    """Returns the files that a page shows, by their names."""
    found = examples(path.read_text("utf-8"))
    return {example.value: example.block.text for example in found if example.option == "file"}


def play(path: Path, folder: Path) -> None:
    """Runs the examples of a page in an empty folder. Raises ExampleError at the first one that isn't as shown."""
    page = path.read_text("utf-8")
    lines = page.splitlines(keepends=True)
    with contextlib.chdir(folder), _Reader(folder) as reader:
        for example in examples(page):
            where = f"{path.name}:{example.block.line}"
            try:
                reader.take(example)
            except _DifferentError as different:
                if not UPDATE:
                    raise ExampleError(f"{where}: printed was\n{different}") from different
                _put(lines, example.block, str(different))
            except Exception as error:
                raise ExampleError(f"{where}: {type(error).__name__}: {error}\n{example.block.text}") from error
    if UPDATE:
        path.write_text("".join(lines), "utf-8")


def _put(lines: list[str], block: Block, text: str) -> None:
    """Puts `text` into the page in the place of what a block has; blocks behind it keep their places in `lines`."""
    fence = lines[block.line - 1]
    indent = fence[:len(fence) - len(fence.lstrip())]
    height = block.text.count("\n")
    new = "".join(f"{indent}{line}".rstrip() + "\n" for line in text.splitlines())
    lines[block.line:block.line + height] = [new, *[""] * (height - 1)]


class _DifferentError(Exception):
    """The text of what was printed, which isn't that of the page."""


class _Reader:
    """Does what a page shows, and remembers what was printed last."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names: dict[str, Any] = {}
        self._sandbox: Sandbox | None = None
        self._printed: str | None = None

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, *_: object) -> None:
        if self._sandbox is not None:
            self._sandbox.close()

    def take(self, example: Example) -> None:
        text = example.block.text
        if example.option == "file":
            path = self._folder / example.value
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        elif example.option in ("run-by", "no-run"):
            self._printed = None
        elif example.language == "text":
            self._compare(text, part=example.option == "excerpt")
        else:
            self._printed = self._run(example.language, text)

    def _run(self, language: str, text: str) -> str | None:
        """Returns what a block printed, or None if it is of a kind that prints nothing."""
        match language:
            case "sql":
                return self._sql(text)
            case "python":
                return self._python(text)
            case "bash":
                return self._bash(text)
            case "toml":
                path = self._folder / "penstock.toml"
                path.write_text(text, "utf-8")
                load_config(path, environment={})
            case "json":
                json.loads(text)
            case _:
                raise ValueError(f"nobody runs {language}")
        return None

    def _compare(self, text: str, part: bool) -> None:
        if self._printed is None:
            raise ValueError("nothing was run that could have printed this")
        if part:
            left = iter(self._printed.splitlines())
            same = all(line in left for line in text.splitlines())
        else:
            same = self._printed == text
        if not same:
            raise _DifferentError(self._printed)

    def _sql(self, text: str) -> str:
        if self._sandbox is None:
            data = self._folder / "penstock-data"
            data.mkdir(exist_ok=True)
            self._sandbox = Sandbox(now_ms=NOW_MS, directory=data, consumers=FakeBroker().consumer)
        printed = ""
        for piece in split_all(text):
            assert isinstance(piece, SqlText), piece
            table = self._sandbox.execute(piece.text).table
            printed = "" if table is None else _shown(table)
        return printed

    def _python(self, text: str) -> str:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(text, "page", "exec"), self._names)
        return printed.getvalue()

    def _bash(self, text: str) -> str:
        calls = _calls(text)
        if calls is not None:
            return "".join(_checked(run_here(*words)).stdout for words in calls)
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        return _checked(subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", text], capture_output=True, text=True, check=False, timeout=120,
            env={**os.environ, "PATH": path})).stdout


def _calls(text: str) -> list[list[str]] | None:
    """Returns the arguments of each command of a block that only calls `penstock`; None for one that needs a shell."""
    if not _NEEDS_SHELL.isdisjoint(text):
        return None
    words = shlex.shlex(text, posix=True, punctuation_chars="\n|&;<>()")
    words.whitespace = " \t"
    words.whitespace_split = True
    lines = [list(line) for ends, line in itertools.groupby(words, lambda word: not word.strip("\n")) if not ends]
    if all(line[0] == "penstock" and not any(word in _OPERATORS for word in line) for line in lines):
        return [line[1:] for line in lines]
    return None


def _checked(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    if done.returncode:
        raise ChildProcessError(f"ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done


def _shown(table: pa.Table) -> str:
    """Returns a result as pages show it: lines where it is a column of texts, such as EXPLAIN's, else a table."""
    if table.num_columns == 1 and types.is_string(table.column(0).type):
        return "".join(f"{line}\n" for line in table.column(0).to_pylist())
    return format_table(table, "box", Style())


def missing_tests(page: str) -> Iterator[str]:
    """Yields the tests that a page says run its blocks, and that aren't there."""
    for example in examples(page):
        if example.option == "run-by":
            file, _, test = example.value.partition("::")
            path = ROOT / file
            if not path.exists() or f"def {test}(" not in path.read_text("utf-8"):
                yield example.value
