"""What the engine and the process of the queries tell each other of a query that the latter plans: JSON in frames.

The process asks for what it must know of the catalog, one question at a time; it never sees the catalog's files, where
passwords are. At last it tells which rows the query reads, and what columns it has.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeVar, get_args

from penstock.common.errors import InternalError
from penstock.common.typed_json import TypedJson
from penstock.planner.logical.operators import Scan
from penstock.planner.task_plans.plan_tree import ResultColumn
from penstock.sql.schema import ChildTable, Database, Session, Table
from penstock.sql.types import DataType, OtherType

T = TypeVar("T")
Question = Literal[
    "database", "database_names", "table", "table_names", "children", "function", "connection", "connection_names"]
_QUESTIONS = get_args(Question)


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """The text of a query, how many words it may have (None: any number), and what of its session it depends on."""

    text: str
    words_max: int | None
    database: str | None
    time_zone: str
    now_ms: int
    user: str
    settings: dict[str, str]

    @classmethod
    def of(cls, text: str, words_max: int | None, session: Session) -> PlanRequest:
        return cls(text, words_max, session.database, session.time_zone, session.now_ms, session.user,
                   dict(session.settings))

    @property
    def session(self) -> Session:
        """The session, but for its user's rights, which the engine looks after."""
        return Session(self.database, self.time_zone, self.now_ms, self.user, self.settings)

    def encode(self) -> bytes:
        """Returns the bytes that `decode` takes."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> PlanRequest:
        """Returns what was encoded. Raises InternalError."""
        return _read(data, lambda told: cls(**told))


@dataclass(frozen=True, slots=True)
class CatalogAnswer:
    """What the catalog has; empty where it has nothing. Which part is meant, the question tells."""

    database: Database | None = None
    table: Table | None = None
    names: tuple[str, ...] = ()
    children: tuple[ChildTable, ...] = ()


@dataclass(frozen=True, slots=True)
class _Planned:
    """Types of columns are few, and stand once each."""

    scans: tuple[Scan, ...]
    types: tuple[DataType | OtherType, ...]


@dataclass(frozen=True, slots=True)
class PlannedQuery:
    """Which rows a query reads, and the columns of its result."""

    scans: tuple[Scan, ...]
    columns: tuple[ResultColumn, ...]

    def encode(self) -> bytes:
        """Returns the bytes that `decode` takes."""
        places: dict[DataType, int] = {}
        columns = [(column.name, places.setdefault(column.type, len(places))) for column in self.columns]
        return json.dumps([_PLANNED.encode(_Planned(self.scans, tuple(places))), columns]).encode()

    @classmethod
    def decode(cls, data: bytes) -> PlannedQuery:
        """Returns what was encoded. Raises InternalError."""
        def made(told: Any) -> PlannedQuery:
            planned = _PLANNED.decode(told[0])
            return cls(planned.scans, tuple(ResultColumn(str(name), planned.types[place]) for name, place in told[1]))
        return _read(data, made)


_ANSWERS = TypedJson(CatalogAnswer)
_PLANNED = TypedJson(_Planned)


def encode_question(question: Question, names: Sequence[str]) -> bytes:
    """Returns the bytes that `decode_question` takes."""
    return json.dumps([question, *names]).encode()


def decode_question(data: bytes) -> tuple[Question, Sequence[str]]:
    """Returns what was encoded. Raises InternalError."""
    def made(told: Any) -> tuple[Question, Sequence[str]]:
        if told[0] not in _QUESTIONS:
            raise ValueError
        return told[0], [str(name) for name in told[1:]]
    return _read(data, made)


def encode_answer(answer: CatalogAnswer) -> bytes:
    """Returns the bytes that `decode_answer` takes."""
    return json.dumps(_ANSWERS.encode(answer)).encode()


def decode_answer(data: bytes) -> CatalogAnswer:
    """Returns what was encoded. Raises InternalError."""
    return _read(data, _ANSWERS.decode)


def _read(data: bytes, make: Callable[[Any], T]) -> T:
    try:
        return make(json.loads(data))
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise InternalError(f"what is told of a query's plan can't be read: {type(error).__name__}") from error
