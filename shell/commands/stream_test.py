"""`penstock test`: plays the steps of a YAML file in a sandbox, by a virtual clock, and compares what streams wrote.

The format is described in docs/testing.md. Nothing here touches the user's data directory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from penstock.common.errors import InvalidStatementError, NotFoundError, PenstockError
from penstock.mnode.admin.sandbox import Sandbox
from penstock.shell.api.arrow_values import column_values
from penstock.sql.dialect.literals import parse_timestamp
from penstock.sql.tree.expression_nodes import quote_string
from penstock.sql.tree.statements import Duration

_DETAILS = ("rows", "columns", "code")
_KNOWN = ("name", "timezone", "now", "setup", "steps")


@dataclass(frozen=True, slots=True)
class TestOutcome:
    """How one test went; `problem` is "" if it passed."""

    name: str
    problem: str

    __test__ = False


class _Mismatch(Exception):
    """A step gave something else than it should have."""


def run_file(path: Path) -> list[TestOutcome]:
    """Plays all tests of a file (YAML documents). NotFoundError, InvalidStatementError for files that aren't tests."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no file {path}") from error
    return [run_test(document, f"{path}, test {number}")
            for number, document in enumerate(_documents(text, path), 1)]


def run_test(document: Mapping[str, Any], where: str) -> TestOutcome:
    """Plays one test."""
    name = str(document.get("name", where))
    zone = str(document.get("timezone", "UTC"))
    # Rows of a test that says nothing of the clock are from no future.
    config = {} if "now" in document else {"maxFuture": 0}
    with Sandbox(zone, _milliseconds(document.get("now", "2024-01-01 00:00:00"), zone), config) as sandbox:
        for kind in ("setup", "steps"):
            for number, step in enumerate(document.get(kind) or (), 1):
                try:
                    _play(sandbox, {"sql": step} if isinstance(step, str) else step)
                except _Mismatch as problem:
                    return TestOutcome(name, f"{kind} {number}: {problem}")
                except PenstockError as error:
                    return TestOutcome(name, f"{kind} {number}: {error}")
    return TestOutcome(name, "")


def _documents(text: str, path: Path) -> list[Mapping[str, Any]]:
    import yaml  # type: ignore[import-untyped]

    try:
        documents = [document for document in yaml.load_all(text, yaml.BaseLoader) if document is not None]
        typed = [document for document in yaml.load_all(text, yaml.SafeLoader) if document is not None]
    except yaml.YAMLError as error:
        raise InvalidStatementError(f"{path} is not YAML: {error}") from error
    for document, plain in zip(typed, documents, strict=True):
        if not isinstance(document, dict):
            raise InvalidStatementError(f"{path}: a test is a mapping with {', '.join(_KNOWN)}")
        unknown = sorted(set(document) - set(_KNOWN))
        if unknown:
            raise InvalidStatementError(f"{path}: {unknown[0]} is not known here", hint=f"known: {', '.join(_KNOWN)}")
        if "now" in document:
            document["now"] = plain["now"]  # YAML would make a date of it
    return typed


# --- steps -----------------------------------------------------------------------------------------------------


def _play(sandbox: Sandbox, step: Mapping[str, Any]) -> None:
    kinds = [kind for kind in _STEPS if kind in step]
    if len(kinds) != 1:
        raise _Mismatch(f"a step is one of {', '.join(_STEPS)}, not {', '.join(map(str, step)) or 'nothing'}")
    unknown = [str(key) for key in step if key not in (*_STEPS, *_DETAILS)]
    if unknown:
        raise _Mismatch(f"{unknown[0]} means nothing in a step")
    _STEPS[kinds[0]](sandbox, step)


def _sql(sandbox: Sandbox, step: Mapping[str, Any]) -> None:
    sandbox.execute(str(step["sql"]))


def _insert(sandbox: Sandbox, step: Mapping[str, Any]) -> None:
    columns = f" ({', '.join(map(str, step['columns']))})" if "columns" in step else ""
    for row in step.get("rows") or ():
        sandbox.execute(f"INSERT INTO {step['insert']}{columns} VALUES ({', '.join(map(_literal, row))})")


def _advance(sandbox: Sandbox, step: Mapping[str, Any]) -> None:
    given = str(step["advance"])
    amount, unit = given[:-1], given[-1:]
    if not amount.isdigit():
        raise _Mismatch(f"advance takes a duration such as 10s, not {given}")
    sandbox.advance(Duration(int(amount), unit).in_units("ms") / 1000)  # type: ignore[arg-type]


def _expect(sandbox: Sandbox, step: Mapping[str, Any]) -> None:
    query = str(step["expect"])
    zone = sandbox.session.time_zone
    table = sandbox.execute(query).table
    columns = [] if table is None else [column_values(column, zone) for column in table.columns]
    got = list(zip(*columns, strict=True))
    wanted = [tuple(row) for row in step.get("rows") or ()]
    ordered = "order by" in query.lower()
    if not _same_rows(got, wanted, ordered, zone):
        raise _Mismatch(f"{query}\n    expected {_listing(wanted)}\n    got      {_listing(got)}")


def _fails(sandbox: Sandbox, step: Mapping[str, Any]) -> None:
    try:
        sandbox.execute(str(step["fails"]))
    except PenstockError as error:
        code = step.get("code")
        if code is not None and error.code != code:
            raise _Mismatch(f"failed with {error}, not with code 0x{code:04X}") from error
        return
    raise _Mismatch(f"was not refused: {step['fails']}")


_STEPS: dict[str, Callable[[Sandbox, Mapping[str, Any]], None]] = {
    "sql": _sql, "insert": _insert, "expect": _expect, "fails": _fails, "advance": _advance,
    "checkpoint": lambda sandbox, _: sandbox.checkpoint(), "kill": lambda sandbox, _: sandbox.kill(),
}


# --- values ----------------------------------------------------------------------------------------------------


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool | int | float):
        return str(value)
    text = value.strftime("%Y-%m-%d %H:%M:%S.%f") if isinstance(value, datetime) else str(value)
    return quote_string(text)


def _same_rows(got: list[tuple[Any, ...]], wanted: list[tuple[Any, ...]], ordered: bool, zone: str) -> bool:
    if len(got) != len(wanted):
        return False
    left = list(got)
    for row in wanted:
        places = [0] if ordered else range(len(left))
        found = next((n for n in places if _same_row(left[n], row, zone)), None)
        if found is None:
            return False
        del left[found]
    return True


def _same_row(got: Sequence[Any], wanted: Sequence[Any], zone: str) -> bool:
    return len(got) == len(wanted) and all(_same(a, b, zone) for a, b in zip(got, wanted, strict=True))


def _same(got: Any, wanted: Any, zone: str) -> bool:
    if got is None or wanted is None:
        return got is wanted
    if isinstance(got, datetime):
        moment = got if got.tzinfo is not None else got.replace(tzinfo=ZoneInfo(zone))
        return round(moment.timestamp() * 1000) == _milliseconds(wanted, zone)
    if isinstance(got, int | float | Decimal) and isinstance(wanted, int | float):
        return math.isclose(float(got), float(wanted), rel_tol=1e-9, abs_tol=1e-9)
    return str(got) == str(wanted)


def _milliseconds(value: Any, zone: str) -> int:
    if isinstance(value, int):
        return value
    text = value.strftime("%Y-%m-%d %H:%M:%S.%f") if isinstance(value, datetime) else str(value)
    return parse_timestamp(text, "ms", zone)


def _listing(rows: list[tuple[Any, ...]]) -> str:
    return "; ".join("(" + ", ".join(_shown(value) for value in row) + ")" for row in rows) or "no rows"


def _shown(value: Any) -> str:
    return "NULL" if value is None else str(value)
