"""The tables of PostgreSQL's catalog that have rows here: of databases, tables, columns, types, users and settings.

A database is a schema, and a database too, whichever a client asks for. Child tables, of which there may be millions,
aren't told. Only normal tables have primary keys: that of a super table has the name of the child table in it.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pyarrow as pa

from penstock.mnode.access.session import SessionState
from penstock.mnode.catalog import system_schema
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.catalog.materialized_views import definition_of
from penstock.mnode.query.activity import Activity, ClientInfo
from penstock.mnode.query.view_tables import view_tables
from penstock.shell.postgres.catalog_schema import PG_CLASS_OID
from penstock.shell.postgres.client_settings import ClientSettings
from penstock.shell.postgres.result_values import TYPES, modifier_of
from penstock.sql.rights import GrantObject, Privilege
from penstock.sql.schema import Column, Table, View
from penstock.sql.types import DataType, Kind

_FIRST_OID, _KEYS_FROM, _DATABASES_FROM, _OWNER_OID, _TABLESPACE_OID = 16_384, 1_000_000_000, 2_000_000_000, 10, 1663
_HEAP, _BTREE = 2, 403
_SCHEMA_OIDS = {"pg_catalog": 11}
_SYSTEM_SCHEMAS = ("pg_catalog", "information_schema")
_NO_DATABASE = "penstock"
#: OID, name, name in SQL, bytes, category, OID of its arrays.
_TYPES = (
    (16, "bool", "boolean", 1, "B", 1000), (17, "bytea", "bytea", -1, "U", 1001), (18, "char", '"char"', 1, "Z", 1002),
    (19, "name", "name", 64, "S", 1003), (20, "int8", "bigint", 8, "N", 1016), (21, "int2", "smallint", 2, "N", 1005),
    (23, "int4", "integer", 4, "N", 1007), (25, "text", "text", -1, "S", 1009), (26, "oid", "oid", 4, "N", 1028),
    (114, "json", "json", -1, "U", 199), (700, "float4", "real", 4, "N", 1021),
    (701, "float8", "double precision", 8, "N", 1022), (1042, "bpchar", "character", -1, "S", 1014),
    (1043, "varchar", "character varying", -1, "S", 1015), (1082, "date", "date", 4, "D", 1182),
    (1114, "timestamp", "timestamp without time zone", 8, "D", 1115),
    (1184, "timestamptz", "timestamp with time zone", 8, "D", 1185), (1700, "numeric", "numeric", -1, "N", 1231))
_LONG_NAMES = {oid: long_name for oid, _, long_name, *_ in _TYPES}
_NUMERIC_BITS = {21: 16, 23: 32, 20: 64, 700: 24, 701: 53}


@dataclass(frozen=True, slots=True)
class PostgresCatalog:
    """The catalog as one session sees it."""

    catalog: Catalog
    activity: Activity
    state: SessionState
    settings: ClientSettings
    #: a table and a connection that there aren't, and no others, to know what columns the tables of the catalog have
    shows_any: bool = False

    @property
    def current(self) -> str:
        """The database in use, by which name the session's own is told."""
        return self.state.database or _NO_DATABASE

    def databases(self) -> list[str]:
        """Returns those that the session's user may look into."""
        rights = self.state.identity.rights
        return sorted(name for name in self.catalog.database_names()
                      if name not in system_schema.DATABASES and rights.touch_database(name))

    def tables(self) -> Iterator[Table]:
        """Yields super tables, normal tables and views that the user may look into."""
        rights = self.state.identity.rights
        if self.shows_any:
            yield _ANY_TABLE
            return
        for database in self.databases():
            for table in (*self.catalog.tables(database, "super"), *self.catalog.tables(database, "normal"),
                          *view_tables(database, self.catalog)):
                if rights.touch(GrantObject("table", table.name, database)):
                    yield table

    def views(self) -> Iterator[View]:
        """Yields the views that the user may look into."""
        if self.shows_any:
            yield _ANY_VIEW
            return
        rights = self.state.identity.rights
        yield from (view for view in self.catalog.views()
                    if rights.touch(GrantObject("table", view.name, view.database)))

    def materialized(self) -> dict[int, str]:
        """Returns the queries of materialized views, by the uids of their tables."""
        found = ((stream.target_uid, definition_of(stream.asked.text)) for stream in self.catalog.streams.all())
        return {uid: definition for uid, definition in found if definition is not None}

    def may(self, privilege: Privilege, database: str, table: str | None = None) -> bool:
        """Whether the user may read or write a table, or all of a database."""
        return self.state.identity.rights.allow(privilege, GrantObject("table", table, database))

    def connections(self) -> list[ClientInfo]:
        """Returns those of the user, or of everybody for an admin."""
        identity = self.state.identity
        if self.shows_any:
            return [ClientInfo(0, "", 0, 0)]
        return [each for each in self.activity.connections()
                if identity.role == "admin" or each.user == identity.name]

    def end_process(self, number: int) -> bool:
        """Ends what a connection's statements compute; returns whether there is such a one that the user knows of."""
        is_there = any(each.id == number for each in self.connections())
        if is_there:
            self.activity.end_connection(number)
        return is_there

    def primary_keys(self) -> Iterator[PrimaryKey]:
        """Yields the primary keys of normal tables."""
        for table in self.tables():
            if table.kind == "normal":
                yield PrimaryKey(table, [table.columns.index(column) + 1 for column in table.key_columns])

    def columns(self) -> Iterator[tuple[Table, int, Column]]:
        """Yields their columns and tags, with their places from 1."""
        for table in self.tables():
            for place, column in enumerate((*table.columns, *table.tags), 1):
                yield table, place, column


@dataclass(frozen=True, slots=True)
class PrimaryKey:
    """The primary key of a table, which is an index and a constraint with the same number; `places` from 1."""

    table: Table
    places: list[int]

    @property
    def oid(self) -> int:
        return _KEYS_FROM + self.table.uid

    @property
    def name(self) -> str:
        return f"{self.table.name}_pkey"

    @property
    def columns(self) -> list[str]:
        return [self.table.columns[place - 1].name for place in self.places]

    @property
    def columns_sql(self) -> str:
        return f"({', '.join(map(_quoted, self.columns))})"


def _quoted(name: str) -> str:
    """Returns a name as SQL of PostgreSQL has it."""
    return name if re.fullmatch(r"[a-z_][a-z0-9_]*", name) else '"' + name.replace('"', '""') + '"'


def oid_of(table: Table) -> int:
    """Returns the OID of a table."""
    return _FIRST_OID + table.uid


def _schema_oid(name: str) -> int:
    return _SCHEMA_OIDS.get(name, _DATABASES_FROM + zlib.crc32(name.encode()) % 2_000_000_000)


def _namespaces(view: PostgresCatalog) -> Iterator[dict[str, object]]:
    for name in (*_SYSTEM_SCHEMAS, *view.databases()):
        yield {"oid": _schema_oid(name), "nspname": name, "nspowner": _OWNER_OID, "nspacl": None,
               "is_current": name == view.state.database, "may_write": view.may("write", name)}


def _database_rows(view: PostgresCatalog) -> Iterator[dict[str, object]]:
    for name in sorted({*view.databases(), view.current}):
        yield {"oid": _schema_oid(name), "datname": name, "datdba": _OWNER_OID, "encoding": 6, "datlocprovider": "c",
               "datistemplate": False, "datallowconn": True, "datconnlimit": -1, "datfrozenxid": 0,
               "datcollate": "C", "datctype": "C", "daticulocale": None, "daticurules": None, "datcollversion": None,
               "datacl": None, "dattablespace": _TABLESPACE_OID}


def _classes(view: PostgresCatalog) -> Iterator[dict[str, object]]:
    materialized = view.materialized()
    for table in view.tables():
        yield {**_class(view, table), "oid": oid_of(table), "relname": table.name, "relam": _HEAP,
               "relkind": "v" if table.kind == "view" else "m" if table.uid in materialized else "r",
               "relnatts": len(table.columns) + len(table.tags), "relhasindex": table.kind == "normal"}
    for key in view.primary_keys():
        yield {**_class(view, key.table), "oid": key.oid, "relname": key.name, "relam": _BTREE, "relkind": "i",
               "relnatts": len(key.places), "relhasindex": False}


def _class(view: PostgresCatalog, table: Table) -> dict[str, object]:
    """Returns what a table and its key have in common."""
    return {"relnamespace": _schema_oid(table.database), "reltype": 0, "reloftype": 0, "relowner": _OWNER_OID,
            "relfilenode": 0, "reltablespace": 0, "relpages": 0, "reltuples": -1.0, "relallvisible": 0,
            "reltoastrelid": 0, "relisshared": False, "relpersistence": "p", "relchecks": 0, "relhasrules": False,
            "relhastriggers": False, "relhassubclass": False, "relrowsecurity": False, "relforcerowsecurity": False,
            "relispopulated": True, "relreplident": "d", "relispartition": False, "relrewrite": 0, "relfrozenxid": 0,
            "relminmxid": 0, "relacl": None, "reloptions": None, "relpartbound": None, "relhasoids": False,
            "may_read": view.may("read", table.database, table.name),
            "may_write": view.may("write", table.database, table.name)}


def _indexes(view: PostgresCatalog) -> Iterator[dict[str, object]]:
    for key in view.primary_keys():
        none = [0] * len(key.places)
        yield {"indexrelid": key.oid, "indrelid": oid_of(key.table), "indnatts": len(key.places),
               "indnkeyatts": len(key.places), "indisunique": True, "indnullsnotdistinct": False, "indisprimary": True,
               "indisexclusion": False, "indimmediate": True, "indisclustered": False, "indisvalid": True,
               "indcheckxmin": False, "indisready": True, "indislive": True, "indisreplident": False,
               "indkey": key.places, "indcollation": none, "indclass": none, "indoption": none, "indexprs": None,
               "indpred": None, "key_names": key.columns,
               "definition": f"CREATE UNIQUE INDEX {_quoted(key.name)} ON {_quoted(key.table.database)}."
                             f"{_quoted(key.table.name)} USING btree {key.columns_sql}"}


def _constraints(view: PostgresCatalog) -> Iterator[dict[str, object]]:
    for key in view.primary_keys():
        yield {"oid": key.oid, "conname": key.name, "connamespace": _schema_oid(key.table.database), "contype": "p",
               "condeferrable": False, "condeferred": False, "convalidated": True, "conrelid": oid_of(key.table),
               "contypid": 0, "conindid": key.oid, "conparentid": 0, "confrelid": 0, "confupdtype": " ",
               "confdeltype": " ", "confmatchtype": " ", "conislocal": True, "coninhcount": 0, "connoinherit": True,
               "conkey": key.places, "confkey": [], "conpfeqop": [], "conppeqop": [], "conffeqop": [], "conexclop": [],
               "conbin": None, "definition": f"PRIMARY KEY {key.columns_sql}"}


def _descriptions(view: PostgresCatalog) -> Iterator[dict[str, object]]:
    for table in view.tables():
        if table.comment:
            yield {"objoid": oid_of(table), "classoid": PG_CLASS_OID, "objsubid": 0, "description": table.comment}


def _constraint_list(view: PostgresCatalog) -> Iterator[dict[str, object]]:
    for key in view.primary_keys():
        yield {**_constraint_name(view, key), "constraint_type": "PRIMARY KEY", "is_deferrable": "NO",
               "initially_deferred": "NO", "enforced": "YES"}


def _key_columns(view: PostgresCatalog) -> Iterator[dict[str, object]]:
    for key in view.primary_keys():
        for place, column in enumerate(key.columns, 1):
            yield {**_constraint_name(view, key), "column_name": column, "ordinal_position": place,
                   "position_in_unique_constraint": None}


def _constraint_name(view: PostgresCatalog, key: PrimaryKey) -> dict[str, object]:
    return {"constraint_catalog": view.current, "constraint_schema": key.table.database, "constraint_name": key.name,
            "table_catalog": view.current, "table_schema": key.table.database, "table_name": key.table.name}


def _attributes(view: PostgresCatalog) -> Iterator[dict[str, object]]:
    for table, place, column in view.columns():
        kind = TYPES[column.type.kind]
        yield {"attrelid": oid_of(table), "attname": column.name, "atttypid": kind.oid, "attstattarget": -1,
               "attlen": kind.size, "attnum": place, "attndims": 0, "attcacheoff": -1,
               "atttypmod": modifier_of(column.type), "attbyval": False, "attalign": "i", "attstorage": "p",
               "attcompression": "", "attnotnull": _is_key(table, place), "atthasdef": False, "atthasmissing": False,
               "attidentity": "", "attgenerated": "", "attisdropped": False, "attislocal": True, "attinhcount": 0,
               "attcollation": 0, "attacl": None, "attoptions": None, "attfdwoptions": None}


def _type_rows(view: PostgresCatalog) -> Iterator[dict[str, object]]:
    for oid, name, long_name, size, category, arrays in _TYPES:
        common = {"typnamespace": 11, "typowner": _OWNER_OID, "typbyval": False, "typtype": "b", "typisdefined": True,
                  "typispreferred": False, "typdelim": ",", "typrelid": 0, "typbasetype": 0, "typtypmod": -1,
                  "typnotnull": False, "typcollation": 0, "typndims": 0, "typdefault": None, "typacl": None,
                  "typinput": "", "typoutput": "", "typreceive": "", "typsend": "", "typstorage": "p", "typalign": "i"}
        yield {"oid": oid, "typname": name, "long_name": long_name, "typlen": size, "typcategory": category,
               "typelem": 0, "typarray": arrays, **common}
        yield {"oid": arrays, "typname": f"_{name}", "long_name": f"{long_name}[]", "typlen": -1, "typcategory": "A",
               "typelem": oid, "typarray": 0, **common}


def _roles(view: PostgresCatalog) -> Iterator[dict[str, object]]:
    identity = view.state.identity
    is_admin = identity.role == "admin"
    yield {"oid": _OWNER_OID, "rolname": identity.name, "rolsuper": is_admin, "rolinherit": True,
           "rolcreaterole": is_admin, "rolcreatedb": is_admin, "rolcanlogin": True, "rolreplication": False,
           "rolconnlimit": -1, "rolpassword": None, "rolvaliduntil": None, "rolbypassrls": False, "rolconfig": None,
           "usename": identity.name, "usesysid": _OWNER_OID, "usesuper": is_admin, "usecreatedb": is_admin}


def _settings(view: PostgresCatalog) -> Iterator[dict[str, object]]:
    for name, value in view.settings.all().items():
        yield {"name": name, "setting": value, "unit": None, "category": "", "short_desc": "", "context": "user",
               "vartype": "string", "source": "default", "boot_val": value, "reset_val": value}


def _table_rows(view: PostgresCatalog) -> Iterator[dict[str, object]]:
    for table in view.tables():
        yield {"table_catalog": view.current, "table_schema": table.database, "table_name": table.name,
               "table_type": "VIEW" if table.kind == "view" else "BASE TABLE", "self_referencing_column_name": None,
               "reference_generation": None, "is_insertable_into": "NO" if table.kind == "view" else "YES",
               "is_typed": "NO", "commit_action": None}


def _column_rows(view: PostgresCatalog) -> Iterator[dict[str, object]]:
    for table, place, column in view.columns():
        kind = TYPES[column.type.kind]
        yield {"table_catalog": view.current, "table_schema": table.database, "table_name": table.name,
               "column_name": column.name, "ordinal_position": place, "column_default": None,
               "is_nullable": "NO" if _is_key(table, place) else "YES", "data_type": _LONG_NAMES[kind.oid],
               "character_maximum_length": column.type.length if column.type.is_string else None,
               "character_octet_length": None, "numeric_precision": column.type.digits or _NUMERIC_BITS.get(kind.oid),
               "numeric_precision_radix": 10 if column.type.digits else _NUMERIC_BITS.get(kind.oid) and 2,
               "numeric_scale": 0 if column.type.is_integer else column.type.scale,
               "datetime_precision": 6 if kind.name == "timestamptz" else None, "udt_catalog": view.current,
               "udt_schema": "pg_catalog", "udt_name": kind.name, "is_identity": "NO", "is_generated": "NEVER",
               "is_updatable": "YES", "collation_name": None, "domain_name": None, "identity_generation": None}


def _schemata(view: PostgresCatalog) -> Iterator[dict[str, object]]:
    for name in (*_SYSTEM_SCHEMAS, *view.databases()):
        yield {"catalog_name": view.current, "schema_name": name, "schema_owner": view.state.identity.name,
               "default_character_set_name": None, "sql_path": None}


def _is_key(table: Table, place: int) -> bool:
    return place == 1 and table.kind != "view" and not table.keyed


def _view_rows(view: PostgresCatalog) -> Iterator[dict[str, object]]:
    for each in view.views():
        yield {"table_catalog": view.current, "table_schema": each.database, "table_name": each.name,
               "view_definition": each.text, "check_option": "NONE", "is_updatable": "NO", "is_insertable_into": "NO"}


def _view_list(view: PostgresCatalog) -> Iterator[dict[str, object]]:
    for each in view.views():
        yield {"schemaname": each.database, "viewname": each.name, "viewowner": each.owner, "definition": each.text}


def _table_list(view: PostgresCatalog) -> Iterator[dict[str, object]]:
    materialized = view.materialized()
    for table in view.tables():
        if table.kind == "view" or (table.uid in materialized and not view.shows_any):
            continue
        yield {"schemaname": table.database, "tablename": table.name, "tableowner": view.state.identity.name,
               "tablespace": None, "hasindexes": table.kind == "normal", "hasrules": False, "hastriggers": False,
               "rowsecurity": False}


def _materialized_list(view: PostgresCatalog) -> Iterator[dict[str, object]]:
    materialized = view.materialized()
    for table in view.tables():
        if table.uid in materialized or view.shows_any:
            yield {"schemaname": table.database, "matviewname": table.name, "matviewowner": view.state.identity.name,
                   "tablespace": None, "hasindexes": table.kind == "normal", "ispopulated": True,
                   "definition": materialized.get(table.uid)}


def _activity(view: PostgresCatalog) -> Iterator[dict[str, object]]:
    texts = {running.connection_id: running.text for running, _ in view.activity.running()}
    for each in view.connections():
        yield {"datid": None, "datname": None, "pid": each.id, "usesysid": _OWNER_OID, "usename": each.user,
               "application_name": "", "client_addr": None, "backend_type": "client backend",
               "backend_start": datetime.fromtimestamp(each.login_ms / 1000, UTC), "wait_event": None,
               "wait_event_type": None, "state": "active" if each.id in texts else "idle",
               "query": texts.get(each.id, "")}


def _access_methods(view: PostgresCatalog) -> Iterator[dict[str, object]]:
    yield {"oid": _HEAP, "amname": "heap", "amhandler": 3, "amtype": "t"}
    yield {"oid": _BTREE, "amname": "btree", "amhandler": 330, "amtype": "i"}


def _tablespaces(view: PostgresCatalog) -> Iterator[dict[str, object]]:
    yield {"oid": _TABLESPACE_OID, "spcname": "pg_default", "spcowner": _OWNER_OID, "spcacl": None, "spcoptions": None}


_ROWS: Mapping[str, Callable[[PostgresCatalog], Iterator[dict[str, object]]]] = {
    "pg_namespace": _namespaces, "pg_database": _database_rows, "pg_class": _classes, "pg_attribute": _attributes,
    "pg_type": _type_rows, "pg_roles": _roles, "pg_authid": _roles, "pg_user": _roles, "pg_settings": _settings,
    "pg_tables": _table_list, "pg_am": _access_methods, "info_tables": _table_rows, "info_columns": _column_rows,
    "info_schemata": _schemata, "info_views": _view_rows, "pg_views": _view_list, "pg_matviews": _materialized_list,
    "pg_tablespace": _tablespaces, "pg_stat_activity": _activity,
    "pg_index": _indexes, "pg_constraint": _constraints, "pg_description": _descriptions,
    "info_table_constraints": _constraint_list, "info_key_column_usage": _key_columns,
}
_NUMBERS = frozenset({"character_maximum_length", "numeric_precision", "numeric_scale", "datetime_precision",
                      "position_in_unique_constraint"})
_LISTS = ("acl", "options", "config")
TABLE_NAMES = frozenset(_ROWS)
_ANY_TABLE = Table(0, "", "", "normal", (Column("", DataType(Kind.BIGINT), ""),), comment="any")
_ANY_VIEW = View(0, "", "", "")


def catalog_table(name: str, view: PostgresCatalog) -> pa.Table:
    """Returns a table of TABLE_NAMES; without rows it has its columns all the same."""
    rows = list(_ROWS[name](view))
    table = pa.Table.from_pylist(rows or list(_ROWS[name](replace(view, shows_any=True))))
    fields = [pa.field(each.name, _arrow_type(each)) for each in table.schema]
    return table.cast(pa.schema(fields)).slice(0, len(rows))


def _arrow_type(field: pa.Field) -> pa.DataType:
    if field.type == pa.list_(pa.null()):
        return pa.list_(pa.int64())
    if field.type != pa.null():
        return field.type
    if field.name.endswith(_LISTS):
        return pa.list_(pa.string())
    return pa.int64() if field.name in _NUMBERS else pa.string()
