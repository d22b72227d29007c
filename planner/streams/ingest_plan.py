"""What the tasks of an ingest do: plain data that is shipped to workers, made of CREATE INGEST."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from penstock.common.errors import InvalidStatementError, NotFoundError, NotSupportedError
from penstock.common.quantities import MIB
from penstock.common.suggestions import did_you_mean
from penstock.planner.streams.dead_letters import dlq_table
from penstock.planner.task_plans.stream_plan import DlqPlan
from penstock.sql.schema import CatalogView, Column, Database, Session, Table, database_missing
from penstock.sql.tree.statements import (
    CreateIngest,
    FieldMapping,
    IngestErrors,
    IngestFormat,
    MessageField,
    TimeUnit,
)
from penstock.sql.types import Precision

IngestKind = Literal["kafka", "mqtt", "files"]
KINDS: tuple[IngestKind, ...] = ("kafka", "mqtt", "files")
MAX_MESSAGE = MIB
CHANGES: tuple[IngestFormat, ...] = ("debezium", "upsert")
"""Formats whose messages say that rows come, change and go."""
_COLUMN_MISSING = 0x2602


@dataclass(frozen=True, slots=True)
class MappedColumn:
    """A column or tag of the table, and where in a message its value is."""

    column: Column
    field: MessageField


@dataclass(frozen=True, slots=True)
class IngestPlan:
    """One planned ingest.

    `columns` begin with the primary timestamp, unless the rows get that `on_arrival`, or the table is `keyed`: rows
    have no time then, and no child table. `time_unit`: of numbers that are times. `refuses_unknown`: messages with
    fields that no column takes can't be used. `max_message` in bytes. `tasks`: how many share the partitions of what is
    read; they are on the first vnodes of the database.
    """

    connection: str
    kind: IngestKind
    topics: tuple[str, ...]
    format: IngestFormat
    schema: str
    path: str
    qos: int
    from_latest: bool
    time_unit: TimeUnit
    refuses_unknown: bool
    measurement: str
    max_message: int
    database: Database
    table: str
    target_uid: int
    time_zone: str
    time_column: Column
    columns: tuple[MappedColumn, ...]
    tags: tuple[MappedColumn, ...]
    tbname: MessageField
    keyed: bool
    on_arrival: bool
    on_error: IngestErrors
    dlq: DlqPlan | None
    tasks: int

    @property
    def precision(self) -> Precision:
        return self.database.precision

    @property
    def array(self) -> tuple[str, ...] | None:
        """The path of the array whose elements are rows, None if each message is one."""
        return next(iter(_arrays([*self.columns, *self.tags, self.tbname])), None)

    @property
    def key(self) -> tuple[MappedColumn, ...]:
        """The columns of the KEY; empty where there is none."""
        return tuple(one for one in self.columns if one.column.primary_key) if self.keyed else ()

    @property
    def guarantee(self) -> str:
        """What can be relied on, in words."""
        if self.kind == "mqtt" and self.qos == 0:
            return "at most once: QoS 0 is not sent again"
        if self.kind == "mqtt":
            arrival = ", but what comes twice with TS ON ARRIVAL is two rows" if self.on_arrival else ""
            return f"at least once: what comes twice is written over itself{arrival}"
        where = "offsets" if self.kind == "kafka" else "places in the files"
        return f"exactly once: the {where} are in the log beside the rows"


def plan_ingest(
    statement: CreateIngest, kind: str, tasks: int | None, catalog: CatalogView, session: Session
) -> IngestPlan:
    """Returns the plan over a connection of this kind; `tasks`: how many it was given before, None for a new one.

    Raises InvalidStatementError, NotFoundError, NotSupportedError.
    """
    table = _target(statement, catalog, session)
    database = catalog.database(table.database)
    assert database is not None
    options = statement.options
    source = _kind(kind, statement)
    form = options.format or "json"
    _check_options(statement, source, form, table)
    arrival = statement.on_arrival
    columns = _mapped(statement, statement.columns, table.columns, "column")
    if statement.time is not None:
        if any(one.column == table.time_column.name for one in statement.columns):
            raise InvalidStatementError(f"the primary timestamp {table.time_column.name} is given twice",
                                        hint="leave out TS FROM, or the column in the list")
        columns = (MappedColumn(table.time_column, statement.time), *columns[1:])
    if arrival:
        columns = columns[1:]
    if table.keyed:
        key = {column.name for column in table.key_columns}
        columns = tuple(replace(one, column=replace(one.column, primary_key=one.column.name in key)) for one in columns)
    # One connection to a broker of MQTT has one session; folders are read in the order of names.
    wanted = len(database.vgroup_ids) if source == "kafka" else 1
    dlq = None if statement.dlq is None else dlq_table(statement.dlq, database.precision, catalog, session)
    return IngestPlan(
        statement.connection, source, options.topics, form, options.schema or "", options.path or "",
        1 if options.qos is None else options.qos, options.start == "latest", options.time_unit or database.precision,
        options.unknown == "refuse", options.measurement or table.name, options.max_message or MAX_MESSAGE, database,
        table.name, table.uid, session.time_zone, table.time_column, columns,
        _mapped(statement, statement.tags, table.tags, "tag"), statement.tbname or MessageField(("tbname",)),
        table.keyed, arrival, statement.on_error, dlq, wanted if tasks is None else tasks)


def aimed(plan: IngestPlan, dlq_uid: int) -> IngestPlan:
    """Returns the plan with the table of its DLQ, which is there by now."""
    return plan if plan.dlq is None else replace(plan, dlq=replace(plan.dlq, target_uid=dlq_uid))


def _target(statement: CreateIngest, catalog: CatalogView, session: Session) -> Table:
    name = statement.target
    database = name.database or session.database
    if database is None:
        raise InvalidStatementError(f"no database is chosen for {name}", code=0x2616, hint="USE one, or write db.table")
    if catalog.database(database) is None:
        raise database_missing(database, catalog)
    table = catalog.table(database, name.name)
    if table is None:
        raise NotFoundError(f"table {database}.{name.name} does not exist", code=0x2603,
                            hint=did_you_mean(name.name, catalog.table_names(database)))
    if table.kind != "super" and not table.keyed:
        raise InvalidStatementError(f"{database}.{table.name} is a {table.kind} table, not a super table",
                                    hint="an ingest writes into the child tables of a super table, named by TBNAME, or "
                                         "into a table with a KEY")
    if table.key_column is not None and not table.keyed:
        raise NotSupportedError(f"{table.name} has a composite key: an ingest can't write it yet")
    return table


def _kind(kind: str, statement: CreateIngest) -> IngestKind:
    for known in KINDS:
        if kind == known:
            return known
    raise InvalidStatementError(f"connection {statement.connection} is of type {kind}, from which nothing can be read",
                                hint=f"an ingest reads {', '.join(KINDS[:-1])} and {KINDS[-1]}")


def _check_options(
    statement: CreateIngest, kind: IngestKind, form: IngestFormat, table: Table
) -> None:
    """Raises InvalidStatementError that lists everything that is wrong at once."""
    options = statement.options
    problems: list[str] = []
    if kind == "files":
        problems += [f"{name} is not for files" for name, given in (
            ("TOPIC", options.topics), ("QOS", options.qos is not None), ("START", options.start)) if given]
        if form == "avro":
            problems.append("files of Avro can't be followed: JSON, CSV and line protocol can")
    else:
        if not options.topics:
            problems.append("TOPIC is missing")
        if options.path is not None:
            problems.append(f"PATH is not for {kind}")
    if kind == "kafka" and options.qos is not None:
        problems.append("QOS is not for kafka")
    if kind == "mqtt" and options.start is not None:
        problems.append("START is not for mqtt: the broker keeps what comes from the first connection on")
    if form in ("csv", "avro") and not options.schema:
        what = "names of the fields, such as 'ts,voltage'" if form == "csv" else "schema as JSON"
        problems.append(f"SCHEMA is missing: the {what}")
    if form not in ("csv", "avro") and options.schema:
        problems.append(f"SCHEMA is not for {form}")
    if form in CHANGES and not table.keyed:
        problems.append(f"FORMAT {form} is for tables with a KEY, by which rows change and go")
    key = {column.name for column in table.key_columns} if table.keyed else set()
    if form in CHANGES and any(one.column in key and len(one.field.path) > 1 for one in statement.columns):
        problems.append(f"the KEY is not within other fields with FORMAT {form}")
    if form == "upsert" and kind != "kafka":
        problems.append("FORMAT upsert is for kafka, whose messages have keys")
    if table.keyed:
        problems += [f"{name} is not for a table with a KEY" for name, given in (
            ("TAGS", statement.tags), ("TBNAME", statement.tbname), ("TS", statement.time or statement.on_arrival))
            if given]
    if options.measurement is not None and form != "line":
        problems.append("MEASUREMENT is for FORMAT line")
    fields = [one.field for one in (*statement.columns, *statement.tags)]
    fields += [one for one in (statement.tbname, statement.time) if one is not None]
    parts = {one.part for one in fields}
    if kind != "kafka" and "key" in parts:
        problems.append("_key is for kafka")
    if form != "line" and parts & {"measurement", "time"}:
        problems.append("_measurement and _time are for FORMAT line")
    arrays = _arrays(fields)
    if arrays and form != "json":
        problems.append("[*] is for FORMAT json")
    if len(arrays) > 1:
        shown = " and ".join(f"$.{'.'.join(path)}[*]" for path in arrays)
        problems.append(f"rows are the elements of one array, not of {shown}")
    if problems:
        raise InvalidStatementError(f"ingest {statement.name}: {'; '.join(problems)}")


def _arrays(fields: Sequence[MappedColumn | MessageField]) -> list[tuple[str, ...]]:
    """Returns the paths of arrays that fields are in, each once."""
    found = [one.field if isinstance(one, MappedColumn) else one for one in fields]
    return list(dict.fromkeys(one.path[:one.array] for one in found if one.array is not None))


def _mapped(
    statement: CreateIngest, given: Sequence[FieldMapping], columns: Sequence[Column], what: str
) -> tuple[MappedColumn, ...]:
    """Returns all columns with their fields: those that aren't `given` have fields of the same names."""
    names = [one.column for one in given]
    known = {column.name: column for column in columns}
    for name in names:
        if name not in known:
            raise NotFoundError(f"{what} {name} does not exist in {statement.target}", code=_COLUMN_MISSING,
                                hint=did_you_mean(name, known))
        if names.count(name) > 1:
            raise InvalidStatementError(f"{what} {name} is given twice")
    fields = {column.name: MessageField((column.name,)) for column in columns}
    if what == "column" and statement.options.format == "line":
        fields[columns[0].name] = MessageField((), "time")
    fields |= {one.column: one.field for one in given}
    return tuple(MappedColumn(column, fields[column.name]) for column in columns)
