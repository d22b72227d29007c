"""Golden scripts run by an engine: every statement, function and option of the dialect with the answer it must give."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from conftest import by_night
from kits.basics.golden_runner import read_blocks, run_golden
from kits.basics.places import ROOT, TESTS
from kits.engines.embedded import Embedded

from penstock.common.config import keys
from penstock.common.errors import PenstockError
from penstock.mnode.access.audit_log import Interface, Origin
from penstock.mnode.access.session import Result
from penstock.planner.functions.table import FUNCTIONS
from penstock.shell.terminal.result_format import Style, text_columns
from penstock.sql.dialect.parse_ddl import DATABASE_OPTIONS
from penstock.sql.dialect.parse_show import FORMS
from penstock.sql.dialect.parse_statement import _NOT_SUPPORTED
from penstock.sql.dialect.parser import parse
from penstock.sql.rows.child_pattern import read_plain_children
from penstock.sql.tree import statements
from penstock.sql.tree.node import Node
from penstock.sql.tree.statements import Explain, Show, Statement
from penstock.sql.types import Kind

GOLDEN = TESTS / "golden" / "engine"
SCRIPTS = sorted(GOLDEN.glob("*.txt"))
PARSER_SCRIPTS = sorted((GOLDEN.parent / "parser").glob("*.txt"))
SHOWS = {words.lower() for words in FORMS if not words.endswith("CONFIG") and words != "DNODE"}
TDENGINE_PARAMETERS = (
    "disableStream", "streamBufferSize", "maxStreamBackendCache", "streamSinkDataRate", "checkpointInterval",
    "concurrentCheckpoint", "streamAggCnt", "ratioOfVnodeStreamThreads", "numOfSnodeStreamThreads",
    "walFsyncDataSizeLimit", "snodeAddress", "checkpointBackupDir", "s3Accesskey", "s3Endpoint", "s3BucketName",
    "streamNotifyMessageSize", "streamNotifyFrameSize", "adapterFqdn", "adapterPort", "adapterToken", "timezone",
    "minSlidingTime", "minIntervalTime", "countAlwaysReturnValue", "multiResultFunctionStarReturnTags",
    "maxNumOfDistinctRes", "keepColumnName", "queryBufferSize", "smlTsDefaultName", "smlTagName",
    "smlChildTableName", "smlAutoChildTableNameDelimiter", "smlDot2Underline",
)
# What would differ from run to run or from machine to machine; scripts say {directory} where a file belongs.
_TIME_TAKEN = re.compile(r"time=[0-9.]+ms")


def printed(result: Result, time_zone: str) -> str:
    """Returns a result as text: a line with names and types, a line per row; or how much was changed."""
    if result.table is None:
        return f"{result.affected} changed" if result.affected else "ok"
    heads = [f"{column.name} {column.type.sql()}" for column in result.columns]
    columns = [cells.values for cells in text_columns(_numbered(result.table), Style(time_zone))]
    rows = zip(*columns, strict=True) if result.table.num_rows else ()
    return "\n".join([" | ".join(heads), *(" | ".join("NULL" if v is None else _one_line(v) for v in row)
                                           for row in rows)])


def _numbered(table: pa.Table) -> pa.Table:
    """Returns the table with names of its own: results may have columns of equal names."""
    return table.rename_columns([f"c{index}" for index in range(table.num_columns)])


def _one_line(text: str) -> str:
    return text.replace("\n", "\\n") or "''"


@pytest.mark.parametrize(("path", "interface"), [
    *(pytest.param(path, "embedded", id=f"{path.stem}-embedded") for path in SCRIPTS),
    *(pytest.param(path, "http", id=f"{path.stem}-http", marks=[pytest.mark.long, *([by_night] if number % 8 else [])])
      for number, path in enumerate(SCRIPTS))])
def test_engine_scripts(path: Path, interface: Interface, tmp_path: Path) -> None:
    """A new engine answers each statement of a script as the script says, and so does its process for clients."""
    db = Embedded(tmp_path / "data")
    db.session.origin = Origin(interface)

    def evaluate(text: str) -> str:
        try:
            output = _evaluated(db, text.replace("{directory}", str(tmp_path)))
        except PenstockError as error:
            output = f"{type(error).__name__}: {error}"
        return _TIME_TAKEN.sub("time=N", output.replace(str(tmp_path), "{directory}"))

    try:
        run_golden(path, evaluate)
    finally:
        db.close()


def _evaluated(db: Embedded, text: str) -> str:
    zone = re.fullmatch(r"SET TIMEZONE '(.*)'", text)
    if zone is not None:  # the shell's settings are no statements of the engine
        db.session.time_zone = zone[1]
        return "ok"
    return printed(db.execute(text), db.session.time_zone)


# --- completeness ----------------------------------------------------------------------------------------------------


@cache
def script_statements() -> list[tuple[str, Statement]]:
    """Returns the texts and the statements of all scripts, those of the parser as well, that can be parsed.

    What is read by a pattern comes as that gives it, too.
    """
    found: list[tuple[str, Statement]] = []
    for path in (*SCRIPTS, *PARSER_SCRIPTS):
        for block in read_blocks(path):
            try:
                parsed = [*parse(block.statement), read_plain_children(block.statement)]
            except PenstockError:
                continue
            found += ((block.statement, statement) for statement in parsed if statement is not None)
    return found


@cache
def script_parts() -> list[object]:
    """Returns all nodes and values of all scripts."""
    return [part for _, statement in script_statements() for part in everything_in(statement)]


def fields_of(kind: type[Any]) -> Iterable[Any]:
    """Returns the fields of a class of nodes or of values."""
    return kind.parts.values() if issubclass(kind, Node) else dataclasses.fields(kind)


def everything_in(value: object) -> Iterator[object]:
    """Yields a statement and all nodes and values inside of it that are ours."""
    if isinstance(value, Node) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        yield value
        for field in fields_of(type(value)):
            yield from everything_in(getattr(value, field.name))
    elif isinstance(value, tuple | list):
        for item in value:
            yield from everything_in(item)


def missing(wanted: Iterable[str], texts: Iterable[str]) -> list[str]:
    """Returns the words that none of the texts has."""
    words = set(re.findall(r"\w+", "\n".join(texts).lower()))
    return sorted(word for word in wanted if word.lower() not in words)


def answered() -> list[str]:
    """Returns the statements of all scripts that are answered, and not with an error."""
    return [block.statement for path in SCRIPTS for block in read_blocks(path)
            if not re.match(r"\w+Error: ", block.expected)]


def test_every_function_is_called() -> None:
    """Each function and pseudo column of the table occurs in a statement that succeeds."""
    assert missing(FUNCTIONS, answered()) == []


def test_every_statement_occurs() -> None:
    """Each class of statement, window, source and clause occurs in the scripts."""
    found = {type(part).__name__ for part in script_parts()}
    classes = {name for name, value in vars(statements).items() if isinstance(value, type) and value not in (
        Node, Statement) and (issubclass(value, Node) or dataclasses.is_dataclass(value))}
    assert classes - found == set()


def test_every_field_of_a_statement_occurs() -> None:
    """Each optional part of each statement is given somewhere, so that no clause goes unseen."""
    unseen: set[str] = set()
    by_kind: dict[type[Any], list[object]] = {}
    for part in script_parts():
        by_kind.setdefault(type(part), []).append(part)
    for kind, parts in by_kind.items():
        for field in fields_of(kind):
            if all(getattr(part, field.name) == field.default for part in parts):
                unseen.add(f"{kind.__name__}.{field.name}")
    # The parser doesn't know a database's precision, nor makes it a LATERAL of a query that is a statement.
    assert unseen == {"DataType.precision", "SubquerySource.as_alone"}


def test_every_choice_occurs() -> None:
    """Each FILL mode, join, trigger, ALTER action, database option, type and SHOW of the parser is tried."""
    parts = script_parts()

    def values(kind: type[Any], field: str) -> set[object]:
        return {getattr(part, field) for part in parts if isinstance(part, kind)}

    assert set(statements.FillMode.__args__) == values(statements.Fill, "mode")
    assert set(statements.JoinKind.__args__) == values(statements.JoinSource, "kind")
    assert set(statements.JoinVariant.__args__) == values(statements.JoinSource, "variant")
    assert set(statements.TriggerMode.__args__) <= values(statements.StreamOptions, "trigger")
    assert set(statements.AlterAction.__args__) == values(statements.AlterTable, "action")
    options = {option for given in values(statements.CreateDatabase, "options") for option, _ in given}  # type: ignore[attr-defined]
    assert set(DATABASE_OPTIONS) - options == set()
    kinds = {part.type.kind for part in parts if isinstance(part, statements.ColumnDefinition)}
    assert set(Kind) - kinds == {Kind.NULL, Kind.OTHER}
    shown = {part.what for part in parts if isinstance(part, Show)}
    assert shown >= SHOWS
    assert any(isinstance(part, Explain) and part.analyze for part in parts)


def test_what_is_refused_occurs() -> None:
    """Each kind of statement that Penstock knows and doesn't have is tried once."""
    texts = [block.statement.upper() for path in SCRIPTS for block in read_blocks(path)]
    assert [words for words in _NOT_SUPPORTED if not any(text.startswith(" ".join(words)) for text in texts)] == []


def test_parameters_of_tdengine_are_keys_or_explained() -> None:
    """Each parameter of TDengine's that has to do with streams and queries is a key here or named on the SQL page."""
    page = (ROOT / "docs" / "dialect.md").read_text("utf-8")
    known = {key.name for key in keys().values()}
    assert [name for name in TDENGINE_PARAMETERS if name not in known and f"`{name}`" not in page] == []
