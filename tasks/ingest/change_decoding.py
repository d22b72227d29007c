"""Decodes messages that say how rows come, change and go: Debezium's, and topics of keys and their values."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from functools import partial
from typing import Any

import numpy as np

from penstock.common.errors import InvalidValueError
from penstock.planner.streams.ingest_plan import IngestPlan, MappedColumn
from penstock.sql.rows.constants import shorten
from penstock.sql.types import INTEGERS, UNITS_PER_SECOND, Kind
from penstock.tasks.ingest.message_decoding import Path, RowFields, Wanted

Row = Mapping[str, Any]
_Convert = Callable[[Any], Any]

_UNAVAILABLE = "__debezium_unavailable_value"
_UNAVAILABLES = frozenset((_UNAVAILABLE, base64.b64encode(_UNAVAILABLE.encode()).decode()))
"""What Debezium writes for a large value that an update left as it was, which PostgreSQL doesn't send then."""

_CONNECT, _DEBEZIUM = "org.apache.kafka.connect.data", "io.debezium.time"
_DAY_S = 86_400
_DATES = frozenset((f"{_CONNECT}.Date", f"{_DEBEZIUM}.Date"))
_INSTANTS: Mapping[str, int] = {
    f"{_CONNECT}.Timestamp": 1_000, f"{_DEBEZIUM}.Timestamp": 1_000, f"{_DEBEZIUM}.MicroTimestamp": 1_000_000,
    f"{_DEBEZIUM}.NanoTimestamp": 1_000_000_000}
"""How many units of a number are a second, for numbers that are times since 1970 in UTC."""
_TIMES_OF_DAY: Mapping[str, int] = {
    f"{_CONNECT}.Time": 1_000, f"{_DEBEZIUM}.Time": 1_000, f"{_DEBEZIUM}.MicroTime": 1_000_000,
    f"{_DEBEZIUM}.NanoTime": 1_000_000_000}
_UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_DECIMAL, _VARIABLE, _BITS = f"{_CONNECT}.Decimal", "io.debezium.data.VariableScaleDecimal", "io.debezium.data.Bits"
_SCALES, _NUMBER_BYTES = 76, 64
"""What is read of decimals: no number that a column could hold has more places, or is longer."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SCHEMAS_KNOWN = 16


@dataclass(frozen=True)
class RowChanges(RowFields):
    """Rows that are to be there, and of which only the KEY counts that are to go (`deletes`).

    `kept`: by row the names of fields whose columns keep the values that they have.
    """

    deletes: Sequence[bool] = ()
    kept: Sequence[frozenset[str]] = ()


@dataclass(frozen=True, slots=True)
class _Change:
    row: Row
    delete: bool = False
    kept: frozenset[str] = frozenset()


class ChangeDecoder:
    """Reads messages with their keys; both may be wrapped as `{"schema": ..., "payload": ...}`.

    A message without content is a tombstone: the row of its key is to go.
    """

    def __init__(self, plan: IngestPlan, paths: Sequence[Path], texts: Sequence[Path]) -> None:
        """`paths`: the fields that are asked for; `texts`: those of them that are text for those who ask."""
        self._wanted = Wanted.of(paths)
        self._texts = frozenset(texts)
        self._read = self._envelope if plan.format == "debezium" else self._upsert
        self._plain_keys = plan.format == "upsert"
        self._key = [one.field.path[0] for one in plan.key if one.field.part is None]
        self._columns = {one.field.path[0]: one for one in reversed(plan.columns) if len(one.field.path) == 1}
        self._per_second = UNITS_PER_SECOND[plan.precision]
        self._time_unit = _UNITS[plan.time_unit]
        self._without_schema = self._converters(())
        self._by_schema: list[tuple[Any, dict[str, _Convert]]] = []

    def __call__(self, messages: Sequence[bytes], keys: Sequence[bytes | None]) -> RowChanges:
        """Returns the changes in the order of the messages. Raises InvalidValueError."""
        changes: list[_Change] = []
        index: list[int] = []
        for number, (message, key) in enumerate(zip(messages, keys, strict=True)):
            found = self._read(message, key)
            changes += found
            index += [number] * len(found)
        return RowChanges(
            [one.row for one in changes], self._wanted, np.array(index, np.int64), self._texts,
            [one.delete for one in changes], [one.kept for one in changes])

    # --- formats -----------------------------------------------------------------------------------------------

    def _envelope(self, message: bytes, key: bytes | None) -> list[_Change]:
        """Returns what an envelope of Debezium says."""
        by_key = partial(self._row_of_key, key)
        if not message:
            gone = by_key()  # mostly, what is to go has gone by the message before
            return [] if gone is None else [_Change(gone, delete=True)]
        envelope, schema = _unwrapped(_json(message))
        if not isinstance(envelope, dict) or not isinstance(envelope.get("op"), str):
            raise InvalidValueError(f"{shorten(repr(envelope))} is no envelope of Debezium, which has an op")
        operation = envelope["op"]
        if operation == "t":
            raise InvalidValueError("the table was truncated, which an ingest doesn't follow: DELETE FROM the table "
                                    "does the same, if that is meant")
        if operation not in ("c", "r", "u", "d"):
            raise InvalidValueError(f"op is {shorten(repr(operation))}, not c, r, u, d or t")
        before, kept_before = self._side(envelope, schema, "before")
        old = None if before is None else self._key_of(before)
        if operation == "d":
            gone = old or by_key()
            if gone is None:
                raise InvalidValueError(
                    f"a row is deleted, and neither before nor the message's key has {' and '.join(self._key)}")
            return [_Change(gone, delete=True)]
        after, kept = self._side(envelope, schema, "after")
        if after is None:
            raise InvalidValueError(f"op is {operation}, and there is no after")
        if kept and before is not None:
            filled = {name: before[name] for name in kept - kept_before if before.get(name) is not None}
            after, kept = {**after, **filled}, kept - filled.keys()
        change = _Change(after, kept=kept)
        moved = operation == "u" and old is not None and old != self._key_of(after)
        return [_Change(old, delete=True), change] if moved and old is not None else [change]

    def _upsert(self, message: bytes, key: bytes | None) -> list[_Change]:
        """Returns what a key and its value say."""
        found = self._row_of_key(key)
        if not message:
            if found is None:
                raise InvalidValueError(f"a message without content says that a row is to go, but its key doesn't have "
                                        f"{' and '.join(self._key)}")
            return [_Change(found, delete=True)]
        value, schema = _unwrapped(_json(message))
        if not isinstance(value, dict):
            raise InvalidValueError(f"{shorten(repr(value))} is no JSON object")
        return [_Change({**self._converted(value, schema), **(found or {})})]

    def _row_of_key(self, key: bytes | None) -> Row | None:
        """Returns the columns of the KEY as the key of a message has them; None if it doesn't have all of them."""
        if key is None or not self._key:
            return None if key is None else {}  # _key says what the KEY is
        content: Any
        schema: Any = None
        if key[:1] in (b"{", b'"') or not self._plain_keys:
            try:
                content, schema = _unwrapped(_json(key))
            except InvalidValueError:
                return None
        else:
            try:
                content = key.decode()
            except UnicodeDecodeError as error:
                raise InvalidValueError(f"the key is not valid UTF-8: {error}") from error
        if not isinstance(content, dict):
            if len(self._key) != 1 or content is None:
                return None
            content, schema = {self._key[0]: content}, {"fields": [_named(schema, self._key[0])]}
        return self._key_of(self._converted(content, schema))

    def _key_of(self, row: Row) -> Row | None:
        """Returns the columns of the KEY alone, None if one is missing."""
        found = {name: row.get(name) for name in self._key}
        return None if None in found.values() else found

    def _side(self, envelope: Row, schema: Any, name: str) -> tuple[Row | None, frozenset[str]]:
        """Returns `before` or `after` and the names of what isn't told of it; None if it is missing."""
        row = envelope.get(name)
        if row is None:
            return None, frozenset()
        if not isinstance(row, dict):
            raise InvalidValueError(f"{name} is {shorten(repr(row))}, and no JSON object")
        kept = frozenset(field for field, value in row.items() if isinstance(value, str) and value in _UNAVAILABLES)
        told = {field: value for field, value in row.items() if field not in kept}
        own = next((field for field in _fields_of(schema) if field.get("field") == name), None)
        return self._converted(told, own), kept

    # --- types -------------------------------------------------------------------------------------------------

    def _converted(self, row: Row, schema: Any) -> Row:
        """Returns a row with the values of its columns as columns take them; `schema` is Connect's, None: unknown."""
        converters = self._without_schema if schema is None else self._converters_of(schema)
        changed: dict[str, Any] = {}
        for name, convert in converters.items():
            value = row.get(name)
            if value is None:
                continue
            try:
                changed[name] = convert(value)
            except (TypeError, ValueError, OverflowError, ArithmeticError) as error:
                raise InvalidValueError(f"field {name}: {shorten(repr(value))} is not of the type that its schema "
                                        "says") from error
        return {**row, **changed} if changed else row

    def _converters_of(self, schema: Any) -> dict[str, _Convert]:
        known = next((one for asked, one in self._by_schema if asked == schema), None)
        if known is None:
            known = self._converters(_fields_of(schema))
            self._by_schema = [(schema, known), *self._by_schema[:_SCHEMAS_KNOWN - 1]]
        return known

    def _converters(self, fields: Iterable[Row]) -> dict[str, _Convert]:
        """Returns what makes of values what their columns take; `fields` as a schema has them, empty: nobody knows."""
        types = {field["field"]: field for field in fields if isinstance(field.get("field"), str)}
        found: dict[str, _Convert] = {}
        for name, column in self._columns.items():
            field = types.get(name)
            convert = self._by_column(column) if not types else None if field is None else self._by_type(field, column)
            if convert is not None:
                found[name] = convert
        return found

    def _by_column(self, column: MappedColumn) -> _Convert | None:
        """Returns what is done to values of which nobody says what type they have."""
        match column.column.type.kind:
            case Kind.VARBINARY:
                return _bytes
            case Kind.TIMESTAMP:
                return partial(_in_unit, self._time_unit, self._per_second)
            case Kind.DECIMAL | Kind.DOUBLE | Kind.FLOAT:
                return _perhaps_variable
        return None

    def _by_type(self, field: Row, column: MappedColumn) -> _Convert | None:
        name, kind = field.get("name"), column.column.type.kind
        if name == _DECIMAL:
            parameters = field.get("parameters")
            return partial(_decimal, parameters.get("scale") if isinstance(parameters, dict) else None)
        if name == _VARIABLE:
            return _variable_decimal
        if name == _BITS:
            return _bits if kind in INTEGERS else _bytes
        if field.get("type") == "bytes":
            return _bytes
        if kind in INTEGERS or not isinstance(name, str):
            return None
        if name in _DATES:
            return partial(_units, 1, self._per_second * _DAY_S) if kind is Kind.TIMESTAMP else _date_text
        if name in _INSTANTS:
            return (partial(_units, _INSTANTS[name], self._per_second) if kind is Kind.TIMESTAMP
                    else partial(_instant_text, _INSTANTS[name]))
        return partial(_time_text, _TIMES_OF_DAY[name]) if name in _TIMES_OF_DAY else None


def _json(message: bytes) -> Any:
    try:
        return json.loads(message)
    except (ValueError, RecursionError) as error:
        raise InvalidValueError(f"no JSON: {error}") from error


def _unwrapped(content: Any) -> tuple[Any, Any]:
    """Returns what a message says, and its schema, if Connect has put it beside."""
    if isinstance(content, dict) and content.keys() == {"schema", "payload"}:
        return content["payload"], content["schema"]
    return content, None


def _fields_of(schema: Any) -> list[Row]:
    fields = schema.get("fields") if isinstance(schema, dict) else None
    return [field for field in fields if isinstance(field, dict)] if isinstance(fields, list) else []


def _named(schema: Any, name: str) -> Row:
    return {**schema, "field": name} if isinstance(schema, dict) else {}


# --- values, as schemas of Connect say; what isn't so raises ValueError or TypeError -----------------------------


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError
    return value


def _units(per_second: int, wanted: int, value: Any) -> int:
    return _whole(value) * wanted // per_second


def _in_unit(per_second: int, wanted: int, value: Any) -> Any:
    return value if isinstance(value, bool) or not isinstance(value, int) else value * wanted // per_second


def _date_text(value: Any) -> str:
    return f"{_EPOCH + timedelta(days=_whole(value)):%Y-%m-%d}"


def _instant_text(per_second: int, value: Any) -> str:
    seconds, rest = divmod(_whole(value), per_second)
    return f"{_EPOCH + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%S}{_fraction(rest, per_second)}Z"


def _time_text(per_second: int, value: Any) -> str:
    seconds, rest = divmod(_whole(value), per_second)
    if not 0 <= seconds <= _DAY_S:
        raise ValueError
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{_fraction(rest, per_second)}"


def _fraction(rest: int, per_second: int) -> str:
    return f".{rest:0{len(str(per_second)) - 1}}" if rest else ""


def _bytes(value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error as error:
        raise ValueError from error


def _bits(value: Any) -> int:
    return int.from_bytes(_bytes(value), "little")


def _decimal(scale: Any, value: Any) -> str:
    digits, places = _bytes(value), int(scale)
    if abs(places) > _SCALES or len(digits) > _NUMBER_BYTES:
        raise ValueError
    exact = Context(prec=_NUMBER_BYTES * 3 + _SCALES)
    return format(Decimal(int.from_bytes(digits, "big", signed=True)).scaleb(-places, exact), "f")


def _variable_decimal(value: Any) -> str:
    return _decimal(_whole(value["scale"]), value["value"])


def _perhaps_variable(value: Any) -> Any:
    return _variable_decimal(value) if isinstance(value, dict) and value.keys() == {"scale", "value"} else value
