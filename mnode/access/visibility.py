"""Which rows of system tables somebody sees who is no admin: those on what that one may use. A table that isn't listed
here is an admin's; those of ADMINS are so for good.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from penstock.mnode.access.roles import ingest_needs, stream_needs, table_object
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.catalog.system_schema import DATABASES
from penstock.sql.rights import GrantObject
from penstock.sql.schema import Session

Row = Mapping[str, Any]

EVERYBODY: Collection[str] = frozenset({
    "ins_cluster", "ins_dnodes", "ins_mnodes", "ins_snodes", "ins_functions", "ins_configs", "ins_indexes",
    "ins_stream_memory", "ins_ports"})
#: Those about databases and tables, with the columns that name them.
OF_DATABASES = {"ins_databases": "name", "ins_vgroups": "db_name", "ins_vnodes": "db_name"}
OF_TABLES = {
    "ins_stables": "stable_name", "ins_tables": "table_name", "ins_columns": "table_name", "ins_tags": "table_name",
    "ins_views": "view_name"}
OF_STREAMS: Collection[str] = frozenset({
    "ins_streams", "ins_stream_tasks", "ins_stream_checkpoints", "ins_stream_savepoints", "ins_watermarks",
    "ins_late_rows", "ins_stream_incidents", "ins_stream_events"})
OF_INGESTS: Collection[str] = frozenset({"ins_ingests"})
OF_CONNECTIONS: Collection[str] = frozenset({"ins_connections"})
#: Those about users, with the column that names them.
OF_USERS = {
    "ins_users": "name", "ins_user_privileges": "user_name", "perf_connections": "user", "perf_queries": "user"}
#: Those that tell of all streams at once.
OF_READERS_OF_ALL: Collection[str] = frozenset({"ins_stream_workers"})
ADMINS: Collection[str] = frozenset({"ins_orphans", "ins_audit"})


def sight(table: str, reader: Session, catalog: Catalog) -> Callable[[Row], bool]:
    """Returns the test whether `reader` sees a row of a system table."""
    rights = reader.rights
    if table in EVERYBODY or (table in OF_READERS_OF_ALL and rights.by_role("read")):
        return lambda row: True
    if table in OF_USERS:
        column = OF_USERS[table]
        return lambda row: row[column] == reader.user
    if table in OF_DATABASES:
        column = OF_DATABASES[table]
        return lambda row: row[column] in DATABASES or rights.touch_database(row[column])
    if table in OF_TABLES:
        if rights.by_role("read"):
            return lambda row: True
        column, touches = OF_TABLES[table], table != "ins_tags"

        def sees(row: Row) -> bool:
            on = _object(row, column, catalog)
            return row["db_name"] in DATABASES or (rights.touch(on) if touches else rights.allow("read", on))

        return sees
    if table in OF_STREAMS and rights.by_role("read"):
        return lambda row: True
    if table in OF_STREAMS:
        return _by_name("stream_name", lambda name: (
            (stream := catalog.streams.named(name)) is not None
            and all(need.met_by(rights) for need in stream_needs(stream, catalog))))
    if table in OF_INGESTS:
        return _by_name("ingest_name", lambda name: (
            (ingest := catalog.ingests.named(name)) is not None
            and all(need.met_by(rights) for need in ingest_needs(ingest, catalog))))
    if table in OF_CONNECTIONS:
        return lambda row: rights.touch(GrantObject("connection", row["name"]))
    return lambda row: False


def _object(row: Row, column: str, catalog: Catalog) -> GrantObject:
    """Returns what rights on a row's table are rights on."""
    if row.get("stable_name"):
        return GrantObject("table", row["stable_name"], row["db_name"])
    return table_object(row["db_name"], row[column], catalog)


def _by_name(column: str, test: Callable[[str], bool]) -> Callable[[Row], bool]:
    """Returns a test of rows by one name in them, made once for each name."""
    known: dict[str, bool] = {}

    def sees(row: Row) -> bool:
        name = row[column]
        if name not in known:
            known[name] = test(name)
        return known[name]

    return sees
