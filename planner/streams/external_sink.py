"""INTO CONNECTION: what external results look like, where they go, and what is guaranteed there."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from penstock.common.connection import ConnectionKind, ExternalConnection
from penstock.common.errors import InvalidStreamError, NotFoundError, Position
from penstock.common.suggestions import did_you_mean
from penstock.planner.task_plans.column_names import OPERATION
from penstock.planner.task_plans.external_rows import IDENTITY, external_columns, key_names
from penstock.planner.task_plans.stream_plan import ExternalSinkPlan, SinkPlan, StreamPlan
from penstock.sql.schema import CatalogView
from penstock.sql.tree.statements import ExternalFormat, ExternalTargetOptions
from penstock.sql.types import DataType, Kind

Place = Literal["topic", "table", "path"]
_AVRO_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLACEHOLDER = re.compile(r"\$\{([^}]*)\}")
_WILDCARDS = re.compile(r"[+#\x00]")


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a target of this kind may say. `place` None: the connection's own address will do. The first format is the
    default."""

    place: Place
    place_required: bool
    formats: tuple[ExternalFormat, ...]
    qos: bool = False
    placeholders: bool = False


_KINDS: Mapping[ConnectionKind, _Kind] = {
    "postgres": _Kind("table", True, ()),
    "kafka": _Kind("topic", True, ("json", "csv", "avro")),
    "mqtt": _Kind("topic", True, ("json", "csv", "avro"), qos=True, placeholders=True),
    "files": _Kind("path", True, ("parquet", "json", "csv", "avro")),
    "webhook": _Kind("path", False, ("json",)),
}


def require_connection(name: str, catalog: CatalogView, position: Position | None = None) -> ExternalConnection:
    """Returns a connection. Raises NotFoundError."""
    connection = catalog.external_connection(name)
    if connection is None:
        raise NotFoundError(f"connection {name} does not exist", position=position,
                            hint=did_you_mean(name, catalog.external_connection_names()))
    return connection


def plan_external_sink(
    target: ExternalTargetOptions, connection: ExternalConnection, keys: Sequence[str]
) -> ExternalSinkPlan:
    """Returns where results go. `keys`: names of what the stream is partitioned by, for `${...}` in topics.

    Raises InvalidStreamError for what the connection's type doesn't have.
    """
    kind = _KINDS[connection.kind]
    what = f"a {connection.kind} connection"
    places = dict(target.places)
    place = places.pop(kind.place, None)
    if places or (place is None and kind.place_required):
        raise InvalidStreamError(f"results go to a {kind.place} of {what}, not to a {next(iter(places))}" if places
                                 else f"{what} needs a {kind.place} to write to",
                                 hint=f"INTO CONNECTION {connection.name} ({kind.place.upper()} '...')")
    if place is not None and (not place.strip() or not place.isprintable()):
        raise InvalidStreamError(f"the {kind.place} is empty or has characters that can't be printed")
    if target.format is not None and target.format not in kind.formats:
        raise InvalidStreamError(f"{what} takes no {target.format}",
                                 hint=f"it takes {', '.join(kind.formats)}" if kind.formats else "leave FORMAT out")
    if target.qos is not None and not kind.qos:
        raise InvalidStreamError(f"QOS is for mqtt, not for {what}")
    if connection.kind == "mqtt" and place is not None and _WILDCARDS.search(place):
        raise InvalidStreamError("a topic to write to can't have wildcards", hint="+ and # are for those who read")
    if connection.kind == "files" and place is not None and ".." in place.split("/"):
        raise InvalidStreamError("the path leads out of the connection's folder", hint="leave .. out")
    for name in placeholders(place or "") if kind.placeholders else ():
        if name not in keys:
            raise InvalidStreamError(f"the topic refers to {name}, which is not in PARTITION BY",
                                     hint=f"there are {', '.join(keys)}" if keys else "add PARTITION BY")
    default = kind.formats[0] if kind.formats else None
    return ExternalSinkPlan(connection.name, connection.kind, place or "", target.format or default, target.qos or 1)


def placeholders(topic: str) -> list[str]:
    """Returns the names that stand as `${name}` in a topic."""
    return _PLACEHOLDER.findall(topic)


def filled_in(topic: str, values: Mapping[str, object]) -> str:
    """Returns a topic with values in the place of `${name}`; what would be another level or a wildcard becomes `_`."""
    return _PLACEHOLDER.sub(lambda found: re.sub(r"[/+#\x00]", "_", _text(values[found[1]])), topic)


def _text(value: object) -> str:
    return "null" if value is None else str(value)


def avro_schema(sink: SinkPlan) -> dict[str, Any]:
    """Returns the schema of results as records of Avro: `_op`, `_id`, then the columns, each of which may be null.

    Raises InvalidStreamError for a column whose name can't be one of a field.
    """
    fields: list[dict[str, Any]] = [{"name": name, "type": "string"} for name in (OPERATION, IDENTITY)]
    for column in external_columns(sink):
        if not _AVRO_NAME.fullmatch(column.name):
            raise InvalidStreamError(f"{column.name} can't be the name of a field of Avro", hint="give it an alias")
        fields.append({"name": column.name, "type": ["null", _avro_type(column.type)], "default": None})
    return {"type": "record", "name": "result", "namespace": "penstock", "fields": fields}


def _avro_type(kind: DataType) -> str | dict[str, Any]:
    match kind.kind:
        case Kind.TIMESTAMP:
            logical = {"ms": "timestamp-millis", "us": "timestamp-micros", "ns": "timestamp-nanos"}[kind.precision]
            return {"type": "long", "logicalType": logical}
        case Kind.DECIMAL:
            return {"type": "bytes", "logicalType": "decimal", "precision": kind.digits or 38, "scale": kind.scale or 0}
        case Kind.UBIGINT:
            return {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 0}
        case Kind.BOOL:
            return "boolean"
        case Kind.FLOAT:
            return "float"
        case Kind.DOUBLE:
            return "double"
        case Kind.BIGINT | Kind.UINT:
            return "long"
        case Kind.VARBINARY | Kind.GEOMETRY:
            return "bytes"
    return "int" if kind.is_integer else "string"


@dataclass(frozen=True, slots=True)
class DeliveryPromise:
    """What is guaranteed of each result at a target: in a few words, and what that takes."""

    words: str
    details: str

    @property
    def text(self) -> str:
        return f"{self.words}: {self.details}"


def delivery_promise(plan: StreamPlan) -> DeliveryPromise | None:
    """Returns what is guaranteed of each result at its external target; None for a table of Penstock's."""
    external = plan.sink.external
    if external is None:
        return None
    again = "after a failure messages may come again, with the same _id"
    match external.kind:
        case "postgres":
            keys = ", ".join(key_names(plan.sink))
            if plan.sink.by_key:
                return DeliveryPromise("exactly once in effect", f"upserts and deletes by ({keys}), each part of a "
                                       "checkpoint is one transaction, sent when that is valid")
            return DeliveryPromise("exactly once in effect",
                                   f"upserts and deletes by ({keys}), each write is one transaction")
        case "kafka" if plan.policies.guarantee == "exactly_once":
            return DeliveryPromise("exactly once for those who read committed messages",
                                   "one transaction per part of a checkpoint, sent when that is valid")
        case "kafka":
            return DeliveryPromise("at least once", again)
        case "files":
            more = "" if plan.policies.guarantee == "exactly_once" else "; rows may count again in the stream itself"
            return DeliveryPromise("exactly once", "one file per part of a checkpoint, written when that is valid; a "
                                                   f"replay replaces it{more}")
        case "mqtt":
            return DeliveryPromise("at least once", f"QoS {external.qos}; {again}")
        case "webhook":
            return DeliveryPromise("at least once", "after a failure rows may be posted again, with the same _id")
