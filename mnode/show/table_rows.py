"""The rows of the system tables about databases, tables, columns and tags."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.common.errors import PenstockError, UnavailableError
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.catalog.system_schema import DATABASES, SCHEMAS
from penstock.mnode.ddl.database_options import effective_options
from penstock.mnode.query.view_tables import known_table, view_tables
from penstock.mnode.show.row_source import Maker, Rows
from penstock.sql.schema import ChildTable, Database, Table, TagValue
from penstock.sql.types import DataType, Kind

#: The options of databases that are columns of ins_databases.
_TEXT_OPTIONS = ("STRICT", "DURATION", "KEEP", "PRECISION", "CACHEMODEL")
_NUMBER_OPTIONS = (
    "REPLICA", "BUFFER", "PAGESIZE", "PAGES", "MINROWS", "MAXROWS", "COMP", "CACHESIZE", "WAL_LEVEL",
    "WAL_FSYNC_PERIOD", "WAL_RETENTION_PERIOD", "WAL_RETENTION_SIZE", "STT_TRIGGER", "TABLE_PREFIX", "TABLE_SUFFIX",
    "TSDB_PAGESIZE")


class TableRows:
    """Lists what the catalog has of databases and tables, and the system's own."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def makers(self) -> dict[str, Maker]:
        return {
            "ins_databases": self._databases,
            "ins_stables": self._stables,
            "ins_tables": self._tables,
            "ins_columns": self._columns,
            "ins_tags": self._tags,
            "ins_views": self._views,
            "ins_indexes": list,
        }

    def _databases(self) -> Rows:
        for name in DATABASES:
            yield {"name": name, "ntables": len(SCHEMAS[name]), "status": "ready"}
        for database in self._catalog.databases():
            options = effective_options(database.options)
            yield {
                **{option.lower(): options[option] for option in _TEXT_OPTIONS},
                **{option.lower(): int(options[option]) for option in _NUMBER_OPTIONS},
                "name": database.name, "create_time": database.create_time_ms, "vgroups": len(database.vgroup_ids),
                "ntables": self._table_count(database), "status": "ready",
                "retentions": options["RETENTIONS"] or None, "single_stable": options["SINGLE_STABLE"] == "1",
            }

    def _table_count(self, database: Database) -> int:
        normal = len(self._catalog.tables(database.name, "normal"))
        supers = self._catalog.tables(database.name, "super")
        return normal + sum(self._catalog.child_count(table.uid) for table in supers)

    def _super_tables(self) -> Iterator[tuple[Database, Table]]:
        for database in self._catalog.databases():
            for table in self._catalog.tables(database.name, "super"):
                yield database, table

    def _stables(self) -> Rows:
        for database, table in self._super_tables():
            yield {
                "stable_name": table.name, "db_name": database.name, "create_time": table.create_time_ms,
                "columns": len(table.columns), "tags": len(table.tags), "last_update": table.create_time_ms,
                "table_comment": table.comment, "uid": table.uid, "ntables": self._catalog.child_count(table.uid),
            }

    def _tables(self) -> Rows:
        for database, table in self._super_tables():
            for child in self._catalog.children(table.uid):
                yield {
                    "table_name": child.name, "db_name": database.name, "create_time": child.create_time_ms,
                    "columns": len(table.columns), "stable_name": table.name, "uid": child.uid,
                    "vgroup_id": child.vgroup_id, "ttl": 0, "type": "CHILD_TABLE",
                }
        for database in self._catalog.databases():
            for table in self._catalog.tables(database.name, "normal"):
                yield {
                    "table_name": table.name, "db_name": database.name, "create_time": table.create_time_ms,
                    "columns": len(table.columns), "uid": table.uid, "vgroup_id": table.vgroup_id,
                    "ttl": table.ttl_days, "table_comment": table.comment, "type": "NORMAL_TABLE",
                }
        for name, tables in SCHEMAS.items():
            for table_name, columns in tables.items():
                yield {"table_name": table_name, "db_name": name, "columns": len(columns), "type": "SYSTEM_TABLE"}

    def _columns(self) -> Rows:
        for database in self._catalog.databases():
            for table in self._catalog.tables(database.name, "super"):
                yield from _column_rows(table.name, table, "SUPER_TABLE")
                for child in self._catalog.children(table.uid):
                    yield from _column_rows(child.name, table, "CHILD_TABLE")
            for table in self._catalog.tables(database.name, "normal"):
                yield from _column_rows(table.name, table, "NORMAL_TABLE")
            for view in view_tables(database.name, self._catalog):
                yield from _column_rows(view.name, view, "VIEW")

    def _views(self) -> Rows:
        for view in self._catalog.views():
            columns, status, reason = None, "ready", None
            try:
                columns = len(known_table(view, self._catalog).columns)
            except PenstockError as error:
                status, reason = "unknown" if isinstance(error, UnavailableError) else "broken", error.message
            yield {
                "view_name": view.name, "db_name": view.database, "create_time": view.create_time_ms,
                "owner": view.owner, "security": "invoker" if view.invoker else "definer",
                "columns": columns, "time_zone": view.time_zone,
                "status": status, "reason": reason, "sql": view.text,
            }

    def _tags(self) -> Rows:
        for database, table in self._super_tables():
            for child in self._catalog.children(table.uid):
                yield from tag_rows(database, table, child)


def tag_text(value: TagValue, kind: DataType) -> str | None:
    """Returns a tag's value as ins_tags and SHOW TAGS print it."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return "\\x" + value.hex().upper()
    if kind.kind is Kind.FLOAT and isinstance(value, float):
        return f"{value:.5f}"
    return str(value)


def tag_rows(database: Database, table: Table, child: ChildTable) -> Rows:
    """Yields the rows of ins_tags for one child table."""
    for tag, value in zip(table.tags, child.tag_values, strict=True):
        yield {
            "table_name": child.name, "db_name": database.name, "stable_name": table.name, "tag_name": tag.name,
            "tag_type": tag.type.sql(), "tag_value": tag_text(value, tag.type),
        }


def _column_rows(name: str, table: Table, table_type: str) -> Rows:
    for column in table.columns:
        kind = column.type
        is_key = column in table.key_columns and not table.keyed
        yield {
            "table_name": name, "db_name": table.database, "table_type": table_type, "col_name": column.name,
            "col_type": kind.sql(), "col_length": kind.width(), "col_precision": kind.digits,
            "col_scale": kind.scale, "col_nullable": 0 if is_key else 1,
        }
