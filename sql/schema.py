"""What statements are bound against: databases, tables, columns, and the read side of the catalog."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Literal, NamedTuple, Protocol

from penstock.common.connection import ExternalConnection
from penstock.common.errors import LimitExceededError, NotFoundError, Position
from penstock.common.placement import Share, even_shares
from penstock.common.suggestions import did_you_mean
from penstock.sql.rights import Rights
from penstock.sql.types import INTEGERS, DataType, Kind, Precision, timestamp

DATABASE_MISSING = 0x0388
VIEWS_MAX = 50
"""Views that one statement reads, those in views included."""

TableKind = Literal["super", "child", "normal", "system", "tags", "external", "view"]
TagValue = str | int | float | bool | bytes | None


@dataclass(frozen=True, slots=True)
class Column:
    """A column or a tag.

    `physical` is the name under which values are stored; it stays when the column is renamed and is never given
    to another column of the same table, so that a dropped and re-added column starts empty.
    """

    name: str
    type: DataType
    physical: str
    primary_key: bool = False
    comment: str | None = None


#: The columns by which rows of a table with a KEY are stored, which nobody sees: see `sql.rows.keyed_rows`.
PLACE = Column("#place", timestamp("ns"), "#place")
KEY_TEXT = Column("#key", DataType(Kind.VARCHAR), "#key", primary_key=True)
UNSEEN = (PLACE.name, KEY_TEXT.name)


def with_time(columns: tuple[Column, ...]) -> tuple[Column, ...]:
    """Returns columns whose key begins with a time as a table has them that goes by it, if the key is one that such a
    table may have: the time, and perhaps the second column."""
    key = [column for column in columns if column.primary_key]
    return columns if not is_time_key([(column.type, column in columns[:2]) for column in key]) else (
        replace(columns[0], primary_key=False), *columns[1:])


def is_time_key(key: Sequence[tuple[DataType, bool]]) -> bool:
    """Whether a key is a time, or one with the second column behind it. Of each column of it: its type, and whether
    it is one of the table's first two."""
    return bool(key) and key[0][0].kind is Kind.TIMESTAMP and len(key) <= 2 and all(first for _, first in key) and all(
        kind.kind in (*INTEGERS, Kind.VARCHAR) for kind, _ in key[1:])


@dataclass(frozen=True, slots=True)
class DatabaseOptions:
    """Options of CREATE DATABASE, resolved (tdengine.md 5.1). Options that change nothing here are kept in `other`."""

    vgroups: int = 2
    precision: Precision = "ms"
    wal_level: int = 1
    wal_fsync_period_ms: int = 3000
    wal_retention_period_s: int = 3600
    wal_retention_size_kb: int = 0
    keep_minutes: int = 3650 * 1440
    other: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class RestoredFrom:
    """What a database was called, and how much lower the uids of its child tables were, before it was restored.

    `uids`: the first and the last one that are reserved for child tables which it had; None: it had none.
    """

    name: str
    shift: int
    uids: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Database:
    """A database: its vgroups are numbered uniquely over the whole engine.

    `cut_shares`: which tables each vgroup has, once a vgroup was split; until then all have equal shares. `origin`:
    the database that it was restored from: streams go on to call child tables as they did there.
    """

    name: str
    options: DatabaseOptions
    vgroup_ids: tuple[int, ...]
    create_time_ms: int
    cut_shares: tuple[Share, ...] = ()
    origin: RestoredFrom | None = None

    @property
    def shares(self) -> tuple[Share, ...]:
        """Which tables each vgroup has, in the order of `vgroup_ids`."""
        return self.cut_shares or even_shares(len(self.vgroup_ids))

    @property
    def precision(self) -> Precision:
        return self.options.precision

    @property
    def home(self) -> str:
        """By which database's name streams call child tables here."""
        return self.name if self.origin is None else self.origin.name

    @property
    def uid_shift(self) -> int:
        """How much lower the uids of child tables are by which streams call the tables of these groups."""
        return 0 if self.origin is None else self.origin.shift


@dataclass(frozen=True, slots=True)
class Table:
    """A super, child, normal or system table, the tags of a super table's children, a table of an external server, or
    what a view is to who asks which tables there are: of a view only names and types of columns count.

    `columns` begins with the primary timestamp. A normal table that begins otherwise, or with a part of the KEY, has no
    time of its own, and one row for each key, which is the columns flagged `primary_key`. A child table has its super
    table's columns and tags, `super_uid`, `super_name` and `tag_values` (in the order of `tags`). A normal table is its
    own storage table: `storage_uid` equals `uid`. For a child table `storage_uid` is the super table's uid.
    `vgroup_id` is None for super and system tables. `replaces`: the uid of the table whose place this one is going to
    take, or 0 if its stream is only being created; until then no name leads to it.
    Of an external table `database` is the connection and `name` what it is called there; it has no primary timestamp.
    """

    uid: int
    database: str
    name: str
    kind: TableKind
    columns: tuple[Column, ...]
    tags: tuple[Column, ...] = ()
    super_uid: int | None = None
    super_name: str | None = None
    tag_values: tuple[TagValue, ...] = ()
    vgroup_id: int | None = None
    create_time_ms: int = 0
    comment: str | None = None
    ttl_days: int = 0
    schema_version: int = 1
    replaces: int | None = None

    @property
    def storage_uid(self) -> int:
        return self.super_uid if self.super_uid is not None else self.uid

    @property
    def keyed(self) -> bool:
        """Whether it has a KEY in place of a primary timestamp."""
        first = self.columns[0] if self.kind == "normal" else None
        return first is not None and (first.primary_key or first.type.kind is not Kind.TIMESTAMP)

    @property
    def stored_columns(self) -> tuple[Column, ...]:
        """The columns of stored rows: `columns`, and what a KEY is stored as before them."""
        return (PLACE, KEY_TEXT, *self.columns) if self.keyed else self.columns

    @property
    def time_column(self) -> Column:
        return self.stored_columns[0]

    @property
    def key_column(self) -> Column | None:
        """The second part of a composite primary key, or None."""
        second = self.stored_columns[1:2]
        return second[0] if second and second[0].primary_key else None

    @property
    def key_columns(self) -> tuple[Column, ...]:
        """The columns that tell a table's rows apart: the KEY, or the primary timestamp and what goes with it."""
        return tuple(column for place, column in enumerate(self.columns)
                     if column.primary_key or (place == 0 and self.kind != "view"))

    def column(self, name: str) -> Column | None:
        """Returns the column or tag `name` (exact match), or None."""
        for column in (*self.columns, *self.tags):
            if column.name == name:
                return column
        return None


class ChildTable(NamedTuple):
    """One child table as lists of child tables hold it; cheaper than `Table`. Normal tables have one too.

    `super_uid`: that of its super table, where the catalog tells of it; 0 for a normal table.
    """

    uid: int
    name: str
    vgroup_id: int
    tag_values: tuple[TagValue, ...] = ()
    create_time_ms: int = 0
    super_uid: int = 0


def child_tables(uids: Iterable[int], names: Iterable[str], vgroup_ids: Iterable[int],
                 tags: Iterable[tuple[TagValue, ...]], created_ms: Iterable[int], super_uid: int) -> list[ChildTable]:
    """Returns child tables of a super table, as many as there are names and uids: a million in a fifth of a second."""
    fields = zip(uids, names, vgroup_ids, tags, created_ms, repeat(super_uid))
    # Their own constructor takes twice as long.
    return list(map(tuple.__new__, repeat(ChildTable), fields))


@dataclass(frozen=True, slots=True)
class UserFunction:
    """A function that a user wrote in Python and made known with CREATE FUNCTION.

    `arguments` are the declared types, None if none are declared: then the function takes `minimum` to `maximum`
    values of any type. `result` is what it returns. `source` tells where the code is: `module:name`, `file.py:name`
    or `file.py`. `uid` grows with each CREATE, so that a replaced function is another one.
    """

    name: str
    aggregate: bool
    arguments: tuple[DataType, ...] | None
    result: DataType
    source: str
    minimum: int = 1
    maximum: int = 1
    uid: int = 0
    create_time_ms: int = 0
    comment: str | None = None


@dataclass(frozen=True, slots=True)
class View:
    """A query that has a name in a database, and is read as a table is.

    `text` is the query as it was typed: names without a database are of the view's own, and times without a zone are
    in `time_zone`. `columns` are what the first of its columns are called. `owner` is who made it: a user whom the
    catalog has known since `owner_since_ms`, or None: who needs no login. `invoker`: it shows what its reader may
    read, not what its owner may. `uid` grows with each CREATE, so that a replaced view is another one.
    """

    uid: int
    database: str
    name: str
    text: str
    columns: tuple[str, ...] = ()
    time_zone: str = "UTC"
    owner: str = "root"
    owner_since_ms: int | None = None
    invoker: bool = False
    create_time_ms: int = 0

    @property
    def says(self) -> tuple[object, ...]:
        """What its rows depend on, but for who may read it."""
        return self.text, self.columns, self.time_zone

    def __str__(self) -> str:
        return f"{self.database}.{self.name}"


def too_many_views() -> LimitExceededError:
    """Returns the error of a statement that reads more than VIEWS_MAX views."""
    return LimitExceededError(f"a statement reads at most {VIEWS_MAX} views, those in views included",
                              hint="store the rows of one of them in a table")


class CatalogView(Protocol):
    """What the planner may ask of the catalog. All names are exact (the parser has folded them)."""

    def database(self, name: str) -> Database | None: ...

    def database_names(self) -> Iterable[str]:
        """Returns the names of all databases; for 'did you mean' hints."""
        ...

    def table(self, database: str, name: str) -> Table | None:
        """Returns the table, also `information_schema` ones, or None."""
        ...

    def view(self, database: str, name: str) -> View | None:
        """Returns the view of this name, or None; no table has the same name."""
        ...

    def table_names(self, database: str) -> Iterable[str]:
        """Returns the names of super and normal tables, views and some child tables; for 'did you mean' hints."""
        ...

    def children(self, super_uid: int) -> Iterable[ChildTable]:
        """Returns the child tables of a super table."""
        ...

    def function(self, name: str) -> UserFunction | None:
        """Returns the user's function of this name, or None."""
        ...

    def external_connection(self, name: str) -> ExternalConnection | None:
        """Returns the connection of this name, or None."""
        ...

    def external_table(self, connection: str, name: str) -> Table:
        """Returns a table of the server that a connection leads to.

        Raises TargetMissingError if there is none, NotSupportedError for connections without tables, and
        ExternalSystemErrors if the server can't be asked.
        """
        ...

    def external_connection_names(self) -> Iterable[str]:
        """Returns the names of all connections; for 'did you mean' hints."""
        ...


def database_missing(name: str, catalog: CatalogView, at: Position | None = None) -> NotFoundError:
    """Returns the error for a database that doesn't exist."""
    return NotFoundError(f"database {name} does not exist", code=DATABASE_MISSING, position=at,
                         hint=did_you_mean(name, catalog.database_names()))


@dataclass(frozen=True, slots=True)
class Session:
    """What a statement's meaning depends on besides its text and the catalog.

    `rights` are those of `user`, which decide what system tables show. `now_ms` is fixed per statement, so that every
    `now` in it is the same instant. `time_zone` is an IANA name.
    """

    database: str | None = None
    time_zone: str = "UTC"
    now_ms: int = 0
    user: str = "root"
    settings: dict[str, str] = field(default_factory=dict)
    rights: Rights = field(default_factory=Rights)


def can_name_child(name: str) -> bool:
    """Whether a value can be the name of a child table."""
    return bool(name) and not name.isspace() and "." not in name and name.isprintable() and len(name.encode()) <= 192


def joined_names(names: Sequence[str]) -> str | Sequence[str]:
    """Returns names as they are stored: as one text, which JSON has in a third of the time, if none has a dot."""
    joined = ".".join(names)
    return joined if joined.count(".") == len(names) - 1 else names


def separate_names(names: str | Sequence[str]) -> Sequence[str]:
    """Returns the names that `joined_names` was given."""
    return names.split(".") if isinstance(names, str) else names
