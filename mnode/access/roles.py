"""What a user may do, decided from the statement and the names in it, before anything is read or asked.

Names are resolved as far as rights need it: to a database, and from a child table to its super table. What isn't there
takes the same rights as what is, so that nobody learns from a refusal what there is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from penstock.common.errors import PermissionDeniedError
from penstock.mnode.access.audit_log import words_of
from penstock.mnode.catalog.system_schema import DATABASES as SYSTEM_DATABASES
from penstock.sql.dialect.parser import parse_query
from penstock.sql.rights import GrantObject, Privilege, Right, Rights, Role
from penstock.sql.schema import VIEWS_MAX, Table, View, too_many_views
from penstock.sql.tree.read_tables import queries_in, tables_of
from penstock.sql.tree.statements import (
    TRIGGER,
    AlterUser,
    AnalyzeStream,
    Calculation,
    CreateIngest,
    CreateStream,
    CreateTableAs,
    CreateView,
    Delete,
    Describe,
    Explain,
    ExternalSource,
    Insert,
    InsertTarget,
    KillQuery,
    Name,
    NoteTime,
    Query,
    ReplayDlq,
    Select,
    SetAnsiQuotes,
    SetOperation,
    SetQueryTimeout,
    Show,
    Statement,
    UseDatabase,
    ValuesQuery,
    VerifyStream,
)

if TYPE_CHECKING:
    from penstock.mnode.catalog.catalog import Catalog
    from penstock.mnode.catalog.catalog_records import IngestRecord, StreamRecord, UserRecord


@dataclass(frozen=True, slots=True)
class Identity:
    """Who asks, with the role and the grants that decide what is answered."""

    name: str
    role: Role
    granted: frozenset[Right] = frozenset()

    @property
    def rights(self) -> Rights:
        return Rights(self.role, self.granted)


OWNER = Identity("root", "admin")
"""Who opens the data directory itself, or reaches the socket in it; and everybody where no login is asked for."""


@dataclass(frozen=True, slots=True)
class Need:
    """What a statement takes: a privilege on an object, or, without one, any privilege on it, a database say."""

    on: GrantObject
    privilege: Privilege | None = None

    def met_by(self, rights: Rights) -> bool:
        if self.privilege is not None:
            return rights.allow(self.privilege, self.on)
        if self.on.kind == "table" and self.on.name is None and self.on.database is not None:
            return rights.touch_database(self.on.database)
        return rights.touch(self.on)


@dataclass(frozen=True, slots=True)
class StreamNeed:
    """What it takes to see how a stream is; of one that isn't there, that all tables may be read."""

    name: str
    tables: tuple[Need, ...]
    privilege: Privilege = "read"

    @property
    def on(self) -> str:
        """As refusals have it, which don't tell what the stream reads, nor whether there is one."""
        return f"the tables of stream {self.name}"

    def met_by(self, rights: Rights) -> bool:
        return all(need.met_by(rights) for need in self.tables)


def require(identity: Identity, statement: Statement, database: str | None, catalog: Catalog) -> None:
    """Raises PermissionDeniedError unless the identity may execute a statement where `database` is in use.

    One's own password is anybody's to change. What the owner of a view may not read, nobody reads through it.
    """
    if identity.role == "admin":
        if catalog.has_views:
            for query in queries_of(statement):
                finder = _Finder(_database_of(statement, database), catalog)
                require_needs(identity, finder.of_query(query), words_of(statement))
        return
    if isinstance(statement, AlterUser) and statement.name == identity.name and statement.role is None:
        return
    what = words_of(statement)
    if _names_a_file(statement):
        _refuse_role(identity, "a statement with a file of the engine's machine")
    wanted = needs(statement, database, catalog)
    if wanted is None:
        _refuse_role(identity, what)
    else:
        require_needs(identity, wanted, what)


def require_needs(identity: Identity, wanted: Iterator[Need | StreamNeed], what: str) -> None:
    """Raises PermissionDeniedError unless the identity has what `what` it wants to do takes."""
    rights = identity.rights
    for need in wanted:
        if not need.met_by(rights):
            privilege = need.privilege or "read"
            raise PermissionDeniedError(
                f"{what} needs {'a right' if need.privilege is None else privilege.upper()} on {need.on}; user "
                f"{identity.name} has role {identity.role} and no grant of it",
                hint=f"an admin can change that: GRANT {privilege.upper()} ON {need.on} TO {identity.name}")


def _refuse_role(identity: Identity, what: str) -> None:
    raise PermissionDeniedError(f"{what} needs the role admin; user {identity.name} has role {identity.role}",
                                hint=f"an admin can change that: ALTER USER {identity.name} ROLE admin")


def needs(statement: Statement, database: str | None, catalog: Catalog) -> Iterator[Need | StreamNeed] | None:
    """Yields what a statement takes; None: the role admin. Tables without a database, in no database, take nothing:
    they can't be found either.
    """
    finder = _Finder(_database_of(statement, database), catalog)
    match statement:
        case Select() | SetOperation() | ValuesQuery():
            return finder.of_query(statement)
        case Explain():
            return finder.of_explained(statement.statement)
        case Insert():
            return finder.of_insert(statement)
        case Delete():
            return finder.of_delete(statement)
        case NoteTime():
            return iter([Need(GrantObject("table", None, statement.database), "write")])
        case UseDatabase():
            return finder.of_database(statement.name)
        case SetQueryTimeout() | SetAnsiQuotes():
            return iter(())
        case KillQuery():
            return iter(())  # whose statement it ends is known when that is found
        case Describe():
            return finder.of_table(statement.name, None)
        case AnalyzeStream() | VerifyStream():
            return finder.of_stream(statement.name)
        case Show():
            return finder.of_show(statement)
    return None


def _database_of(statement: Statement, in_use: str | None) -> str | None:
    """Returns where unqualified names lead: those of views, and of streams with a trigger, to their own database."""
    match statement:
        case Explain():
            return _database_of(statement.statement, in_use)
        case CreateView(name=Name(database=own)) | CreateStream(calculation=Calculation(database=own)) if own:
            return own
    return in_use


def queries_of(statement: Statement) -> Iterator[Query]:
    """Yields the queries that a statement is, takes rows from, or has in its condition."""
    match statement:
        case Select() | SetOperation() | ValuesQuery():
            yield statement
        case Explain():
            yield from queries_of(statement.statement)
        case Insert():
            yield from (target.query for target in statement.targets if target.query is not None)
        case CreateStream(calculation=Calculation(query=calculated, where=told)):
            yield statement.query
            if calculated is not None:
                yield calculated
            if told is not None:
                yield from queries_in(told)
        case CreateView() | CreateTableAs() | CreateStream():
            yield statement.query
        case Delete() | ReplayDlq() if statement.where is not None:
            yield from queries_in(statement.where)


def require_readable(view: View, catalog: Catalog) -> None:
    """Raises PermissionDeniedError unless a view's owner may read what it reads, if it shows that."""
    for _ in _Finder(None, catalog).of_view(view):
        pass


def identity_of(user: UserRecord) -> Identity:
    return Identity(user.name, user.role, frozenset(user.granted))


def owner_of(view: View, catalog: Catalog) -> Identity | None:
    """Returns who owns a view, as of now; None if that user is none any more, whoever has the name."""
    if view.owner_since_ms is None:
        return OWNER
    user = catalog.users.named(view.owner)
    return None if user is None or user.created_ms != view.owner_since_ms else identity_of(user)


def looks_inside(query: Query, database: str | None, catalog: Catalog) -> bool:
    """Tells whether a query reads system tables at most: it takes nothing then."""
    return next(_Finder(database, catalog).of_query(query), None) is None


def insert_needs(name: Name, database: str | None, catalog: Catalog) -> Iterator[Need]:
    """Yields what it takes to insert rows into a table without a statement."""
    return _Finder(database, catalog).of_table(name, "write")


def lines_needs(database: str) -> Iterator[Need]:
    """Yields what line protocol takes, which makes the tables that it needs."""
    return iter([Need(GrantObject("table", None, database), "write")])


def stream_needs(record: StreamRecord, catalog: Catalog) -> Iterator[Need]:
    """Yields what it takes to see how a stream is: that its tables may be read, external ones excepted."""
    for uid in (*record.source_uids, record.target_uid):
        table = catalog.table_by_uid(uid)  # None: its results leave Penstock
        if table is not None:
            yield Need(_object_of(table), "read")


def ingest_needs(record: IngestRecord, catalog: Catalog) -> Iterator[Need]:
    """Yields what it takes to see how an ingest is."""
    table = catalog.table_by_uid(record.target_uid)
    if table is not None:
        yield Need(_object_of(table), "read")


def table_object(database: str, name: str, catalog: Catalog) -> GrantObject:
    """Returns what rights on a table are rights on: of a child table it is the super table."""
    table = catalog.table(database, name)
    return GrantObject("table", name, database) if table is None else _object_of(table)


def _object_of(table: Table) -> GrantObject:
    return GrantObject("table", table.super_name or table.name, table.database)


@dataclass(frozen=True, slots=True)
class _Finder:
    """Finds what statements take, where `database` is in use.

    `asker`: the owner of the view in whose query it is; None: who executes the statement. `seen`: the views that were
    looked into, and for whom, if that matters.
    """

    database: str | None
    catalog: Catalog
    asker: str | None = None
    seen: set[tuple[View, str | None]] = field(default_factory=set)

    def of_table(self, name: Name, privilege: Privilege | None) -> Iterator[Need]:
        database = name.database or self.database
        if database is not None and database not in SYSTEM_DATABASES:
            yield Need(table_object(database, name.name, self.catalog), privilege)

    def of_database(self, name: str | None) -> Iterator[Need]:
        if name is not None and name not in SYSTEM_DATABASES:
            yield Need(GrantObject("table", None, name))

    def of_query(self, query: Query) -> Iterator[Need]:
        for source in tables_of(query):
            if isinstance(source, ExternalSource):
                yield Need(GrantObject("connection", source.connection.name), "read")
                continue
            if source.name.database == TRIGGER:
                continue  # the table of a stream's trigger
            yield from self.of_table(source.name, "read")
            view = self.catalog.view(source.name.database or self.database or "", source.name.name)
            if view is not None:
                yield from self.of_view(view)

    def of_view(self, view: View) -> Iterator[Need]:
        """Yields what the reader of a view needs besides a right on it. Raises PermissionDeniedError if its owner
        may not read what it reads, and is who reads it; LimitExceededError if there are too many views.
        """
        looked = (view, self.asker if view.invoker else None)
        if looked in self.seen:
            return
        if len(self.seen) >= VIEWS_MAX:
            raise too_many_views()
        self.seen.add(looked)
        query = parse_query(view.text)
        if view.invoker:
            yield from replace(self, database=view.database).of_query(query)
            return
        owner = owner_of(view, self.catalog)
        if owner is None:
            raise PermissionDeniedError(f"view {view} can't be read: its owner {view.owner} no longer exists",
                                        hint="CREATE OR REPLACE VIEW makes you its owner")
        inner = replace(self, database=view.database, asker=owner.name)
        require_needs(owner, inner.of_query(query), f"view {view}")

    def of_explained(self, statement: Statement) -> Iterator[Need]:
        """Yields what planning takes: nothing is written, but it is told what columns the target has."""
        match statement:
            case Select() | SetOperation() | ValuesQuery():
                yield from self.of_query(statement)
            case CreateStream():
                for query in queries_of(statement):
                    yield from self.of_query(query)
                if statement.target.external is None:
                    yield from self.of_table(statement.target.name, "read")
                else:
                    yield Need(GrantObject("connection", statement.target.name.name), "write")
            case CreateIngest():
                yield Need(GrantObject("connection", statement.connection), "read")
                yield from self.of_table(statement.target, "read")

    def of_delete(self, statement: Delete) -> Iterator[Need]:
        yield from self.of_table(statement.name, "write")
        table = self.catalog.table(statement.name.database or self.database or "", statement.name.name)
        if table is not None and table.keyed and statement.where is not None:
            yield from self.of_table(statement.name, "read")  # which rows go tells what is in them
        for query in queries_of(statement):
            yield from self.of_query(query)

    def of_insert(self, statement: Insert) -> Iterator[Need]:
        for target in statement.targets:
            yield from self._of_target(target)
            if target.query is not None:
                yield from self.of_query(target.query)

    def _of_target(self, target: InsertTarget) -> Iterator[Need]:
        database = target.name.database or self.database
        known = database is not None and self.catalog.table(database, target.name.name) is not None
        name = target.name if known or target.using is None else target.using
        yield from self.of_table(Name(name.name, name.database or database), "write")

    def of_stream(self, name: str) -> Iterator[StreamNeed]:
        record = self.catalog.streams.named(name)
        yield StreamNeed(name, (Need(GrantObject("table"), "read"),) if record is None else tuple(
            stream_needs(record, self.catalog)))

    def of_show(self, statement: Show) -> Iterator[Need | StreamNeed]:
        """Yields what it takes to be shown one thing; lists have what may be seen."""
        match statement.what:
            case "tags" | "table tags" | "table distributed":
                assert statement.table is not None
                yield from self.of_table(statement.table, "read")
            case "create table" | "create stable" | "create view" | "indexes":
                assert statement.table is not None
                yield from self.of_table(statement.table, None)
            case "create database":
                yield from self.of_database(statement.database)
            case "stables" | "tables" | "normal tables" | "child tables" | "views" | "vgroups" | "cut":
                yield from self.of_database(statement.database or self.database)
            case "create stream" | "checkpoints" | "savepoints" if statement.table is not None:
                yield from self.of_stream(statement.table.name)


def _names_a_file(statement: Statement) -> bool:
    match statement:
        case Select() | SetOperation() | ValuesQuery():
            return statement.into_file is not None
        case Explain():
            return _names_a_file(statement.statement)
        case Insert():
            return any(target.file is not None for target in statement.targets)
    return False
