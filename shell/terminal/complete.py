"""Suggests words at the prompt: keywords, functions, names from the catalog, dot commands and files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

import pyarrow as pa
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document

from penstock.common.errors import PenstockError
from penstock.shell.terminal.help_text import COMMANDS
from penstock.shell.terminal.lexer import KEYWORDS, PSEUDO_COLUMNS
from penstock.shell.terminal.result_format import MODES

NAMES_MAX = 2000
_WORD = re.compile(r"[A-Za-z0-9_.`]*$")
_FILE_COMMAND = re.compile(r"\s*(?:source|\.read|\.output)\s+(\S*)$", re.IGNORECASE)
_MODE_COMMAND = re.compile(r"\s*\.mode\s+(\w*)$")
_AFTER_TABLE_WORD = re.compile(
    r"\b(from|join|into|table|stable|view|connection|describe|desc|update)\s+[\w.`]*$", re.IGNORECASE)
_SAVEPOINT_OF_STREAM = re.compile(
    r"\bstart\s+stream\s+(?:if\s+exists\s+)?`?(\w+)`?\s+from\s+savepoint\s+('[^']*)?$", re.IGNORECASE)
_SAVEPOINT_TO_DROP = re.compile(r"\bdrop\s+savepoint\s+(?:if\s+exists\s+)?()('[^']*)?$", re.IGNORECASE)
_SAVEPOINTS = "SELECT savepoint, stream_name FROM information_schema.ins_stream_savepoints"
_NAME_QUERIES: tuple[tuple[str, str], ...] = (
    ("database", "SELECT name FROM information_schema.ins_databases"),
    ("super table", "SELECT stable_name, db_name FROM information_schema.ins_stables"),
    ("table", f"SELECT table_name, db_name FROM information_schema.ins_tables LIMIT {NAMES_MAX}"),
    ("view", f"SELECT view_name, db_name FROM information_schema.ins_views LIMIT {NAMES_MAX}"),
    ("stream", "SELECT stream_name FROM information_schema.ins_streams"),
    ("connection", "SELECT name FROM information_schema.ins_connections"),
    ("user", "SELECT name FROM information_schema.ins_users"),
    ("column", f"SELECT DISTINCT col_name, db_name FROM information_schema.ins_columns LIMIT {NAMES_MAX}"),
)

Query = Callable[[str], pa.Table | None]
Candidate = tuple[str, str]


class ShellCompleter(Completer):
    """Completes the word before the cursor. Catalog names are read when first needed and after `forget_names`."""

    def __init__(self, query: Query, current_database: Callable[[], str | None]) -> None:
        self._query = query
        self._current_database = current_database
        self._names: list[Candidate] | None = None
        self._paths = PathCompleter(expanduser=True)

    def forget_names(self) -> None:
        """Makes the next completion read the catalog again."""
        self._names = None

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        line = document.text_before_cursor
        if (file := _FILE_COMMAND.match(line)) is not None:
            yield from self._paths.get_completions(Document(file[1]), complete_event)
            return
        if (mode := _MODE_COMMAND.match(line)) is not None:
            yield from (Completion(name, -len(mode[1])) for name in MODES if name.startswith(mode[1]))
            return
        savepoint = _SAVEPOINT_OF_STREAM.search(line) or _SAVEPOINT_TO_DROP.search(line)
        if savepoint is not None:
            yield from self._savepoints(stream=savepoint[1], typed=savepoint[2] or "")
            return
        word = _typed_word(line)
        if not word and not _AFTER_TABLE_WORD.search(line):
            return
        seen: set[str] = set()
        for text, kind in self._candidates(line):
            if text.lower().startswith(word.lower()) and text.lower() not in seen:
                seen.add(text.lower())
                yield Completion(_in_case_of(word, text, kind), start_position=-len(word), display_meta=kind)

    def _candidates(self, line: str) -> Iterable[Candidate]:
        if line.lstrip().startswith("."):
            return ((f".{name}", usage.meaning) for name, usage in COMMANDS.items())
        if _AFTER_TABLE_WORD.search(line):
            return ((text, kind) for text, kind in self._catalog_names() if kind != "column")
        keywords = ((word, "keyword") for word in KEYWORDS)
        pseudo_columns = ((word, "pseudo column") for word in PSEUDO_COLUMNS)
        functions = ((name, "function") for name in _function_names())
        return chain(self._catalog_names(), keywords, functions, pseudo_columns)

    def _savepoints(self, stream: str, typed: str) -> Iterator[Completion]:
        """Suggests quoted names of savepoints, of one stream or, for "", of all."""
        for name, owner in sorted(set(self._rows(_SAVEPOINTS))):
            quoted = "'" + name.replace("'", "''") + "'"
            if stream in ("", owner) and quoted.startswith(typed):
                yield Completion(quoted, start_position=-len(typed), display_meta=f"savepoint of {owner}")

    def _catalog_names(self) -> list[Candidate]:
        if self._names is None:
            self._names = list(chain.from_iterable(self._read_names(*source) for source in _NAME_QUERIES))
        return self._names

    def _rows(self, statement: str) -> list[tuple[Any, ...]]:
        try:
            table = self._query(statement)
        except PenstockError:  # an engine that cannot answer now must not disturb typing
            return []
        return [] if table is None else list(zip(*(column.to_pylist() for column in table.columns), strict=True))

    def _read_names(self, kind: str, statement: str) -> Iterator[Candidate]:
        current = self._current_database()
        for name, *database in self._rows(statement):
            if not database or database[0] == current:
                yield name, kind
            if database and kind != "column":
                yield f"{database[0]}.{name}", kind


def _typed_word(line: str) -> str:
    match = _WORD.search(line)
    return match[0] if match is not None else ""


def _in_case_of(word: str, text: str, kind: str) -> str:
    """Returns a keyword in the case that the user types; names stay as they are."""
    if kind not in ("keyword", "function"):
        return text
    return text.upper() if word.isupper() or (kind == "keyword" and not word.islower()) else text.lower()


def _function_names() -> list[str]:
    from penstock.planner.functions.duckdb_calls import listed
    from penstock.planner.functions.table import FUNCTIONS

    return sorted({*FUNCTIONS, *listed()})
