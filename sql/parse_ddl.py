"""Parses CREATE, ALTER, DROP and USE of databases and tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from sqlglot import exp

from penstock.sql.cursor import Cursor
from penstock.sql.lexer import TokenKind
from penstock.sql.literals import unescape
from penstock.sql.parse_expression import parse_data_type, parse_operand
from penstock.sql.statements import (
    AlterAction,
    AlterDatabase,
    AlterTable,
    ColumnDefinition,
    CreateChildTable,
    CreateChildTables,
    CreateDatabase,
    CreateTable,
    DropDatabase,
    DropTable,
    FlushDatabase,
    Name,
    SplitVgroup,
    Statement,
    TrimDatabase,
    UseDatabase,
)

_Item = TypeVar("_Item")

# What the value of each database option looks like: an integer, up to so many durations, or a string.
_INTEGER_OPTIONS = frozenset({
    "BUFFER", "CACHESIZE", "COMP", "COMPACT_TIME_OFFSET", "HASH_PREFIX", "HASH_SUFFIX", "MAXROWS", "MINROWS",
    "PAGES", "PAGESIZE", "REPLICA", "S3_CHUNKPAGES", "S3_CHUNKSIZE", "S3_COMPACT", "SINGLE_STABLE",
    "SS_CHUNKPAGES", "SS_COMPACT", "STT_TRIGGER", "TABLE_PREFIX", "TABLE_SUFFIX", "TSDB_PAGESIZE", "VGROUPS",
    "WAL_FSYNC_PERIOD", "WAL_LEVEL", "WAL_RETENTION_PERIOD", "WAL_RETENTION_SIZE", "WAL_ROLL_PERIOD",
    "WAL_SEGMENT_SIZE",
})
_SIGNED_OPTIONS = frozenset({"WAL_RETENTION_PERIOD", "WAL_RETENTION_SIZE"})
_DURATION_OPTIONS = {"DURATION": 1, "KEEP": 3, "KEEP_TIME_OFFSET": 1, "COMPACT_INTERVAL": 1, "SS_KEEPLOCAL": 1,
                     "S3_KEEPLOCAL": 1}
_STRING_OPTIONS = frozenset({"CACHEMODEL", "ENCRYPT_ALGORITHM", "PRECISION", "STRICT", "DNODES"})
_OPTIONS = tuple(sorted(_INTEGER_OPTIONS | _STRING_OPTIONS | set(_DURATION_OPTIONS)))
_COLUMN_OPTIONS = ("ENCODE", "COMPRESS", "LEVEL")
_MAX_KEEP = 365_000 * 1440


def take_if_not_exists(cursor: Cursor) -> bool:
    """Parses IF NOT EXISTS if it follows."""
    if not cursor.take("IF"):
        return False
    cursor.expect("NOT", "EXISTS")
    return True


def take_if_exists(cursor: Cursor) -> bool:
    """Parses IF EXISTS if it follows."""
    if not cursor.take("IF"):
        return False
    cursor.expect("EXISTS")
    return True


def parse_parenthesised(cursor: Cursor, parse_item: Callable[[Cursor], _Item]) -> tuple[_Item, ...]:
    """Parses `(item, ...)` with at least one item. Raises SqlSyntaxError."""
    cursor.expect_operator("(")
    items = [parse_item(cursor)]
    while cursor.take_operator(","):
        items.append(parse_item(cursor))
    cursor.expect_operator(")")
    return tuple(items)


# --- databases ---


def parse_create_database(cursor: Cursor) -> Statement:
    """Parses what follows CREATE DATABASE."""
    if_not_exists = take_if_not_exists(cursor)
    name = cursor.name("a database name")
    return CreateDatabase(name, _parse_database_options(cursor), if_not_exists)


def parse_alter_database(cursor: Cursor) -> Statement:
    """Parses what follows ALTER DATABASE."""
    name = cursor.name("a database name")
    options = _parse_database_options(cursor)
    if not options:
        raise cursor.fail("an option is expected", hint="such as KEEP 365d")
    return AlterDatabase(name, options)


def parse_split_vgroup(cursor: Cursor) -> Statement:
    """Parses what follows SPLIT VGROUP."""
    return SplitVgroup(cursor.integer("the number of a vgroup"))


def parse_drop_database(cursor: Cursor) -> Statement:
    """Parses what follows DROP DATABASE."""
    if_exists = take_if_exists(cursor)
    return DropDatabase(cursor.name("a database name"), if_exists)


def parse_use(cursor: Cursor) -> Statement:
    """Parses what follows USE."""
    return UseDatabase(cursor.name("a database name"))


def parse_flush(cursor: Cursor) -> Statement:
    """Parses what follows FLUSH."""
    cursor.expect("DATABASE")
    return FlushDatabase(cursor.name("a database name"))


def parse_trim(cursor: Cursor) -> Statement:
    """Parses what follows TRIM."""
    cursor.expect("DATABASE")
    return TrimDatabase(cursor.name("a database name"))


def _parse_database_options(cursor: Cursor) -> tuple[tuple[str, str | int], ...]:
    options: dict[str, str | int] = {}
    while not cursor.at_end:
        token = cursor.token
        option = cursor.take_any(*_OPTIONS)
        if option is None:
            raise cursor.fail("a database option is expected")
        if option in options:
            raise cursor.fail(f"{option} is given twice", token)
        options[option] = _parse_database_option(cursor, option)
    return tuple(options.items())


def _parse_database_option(cursor: Cursor, option: str) -> str | int:
    if option in _STRING_OPTIONS and cursor.token.kind is TokenKind.STRING:
        return unescape(cursor.advance().raw)
    if option in _DURATION_OPTIONS:
        return _parse_durations(cursor, option, _DURATION_OPTIONS[option])
    if option in _INTEGER_OPTIONS:
        return cursor.integer(option, minimum=-1 if option in _SIGNED_OPTIONS else 0)
    return cursor.string(option)


def _parse_durations(cursor: Cursor, option: str, maximum: int) -> str | int:
    """Parses `20`, `20d` or, where several are allowed, `20d,30d,40d`; a lone integer stays one."""
    values: list[str] = []
    while True:
        token = cursor.token
        if token.kind is TokenKind.STRING:
            raise cursor.fail(f"{option} takes integers or durations without quotes")
        duration = cursor.duration(f"the value of {option}")
        values.append(str(duration))
        if not cursor.take_operator(","):
            break
        if len(values) == maximum:
            raise cursor.fail(f"{option} takes at most {maximum} value{'s' if maximum > 1 else ''}")
    return int(values[0]) if len(values) == 1 and values[0].isdigit() else ",".join(values)


# --- tables ---


def parse_create_table(cursor: Cursor, *, must_be_super: bool) -> Statement:
    """Parses what follows CREATE TABLE or CREATE STABLE."""
    if_not_exists = take_if_not_exists(cursor)
    name = cursor.object_name("a table name")
    if cursor.at("USING") and not must_be_super:
        return _parse_create_child_tables(cursor, name, if_not_exists)
    columns = parse_parenthesised(cursor, parse_column_definition)
    tags: tuple[ColumnDefinition, ...] = ()
    if must_be_super:
        cursor.expect("TAGS")
        tags = parse_parenthesised(cursor, parse_column_definition)
    elif cursor.take("TAGS"):
        tags = parse_parenthesised(cursor, parse_column_definition)
    comment, ttl, options = _parse_table_options(cursor)
    return CreateTable(name, columns, tags, if_not_exists, must_be_super, comment, ttl, options)


def parse_column_definition(cursor: Cursor) -> ColumnDefinition:
    """Parses `name type [PRIMARY KEY] [COMMENT text] [ENCODE ..] [COMPRESS ..] [LEVEL ..]`."""
    token = cursor.token
    name = cursor.name("a column name")
    if name == "tbname":
        raise cursor.fail("tbname is the name of every table's own name; a column needs another", token)
    data_type = parse_data_type(cursor)
    primary_key = False
    comment: str | None = None
    options: dict[str, str] = {}
    while not (cursor.at_operator(",") or cursor.at_operator(")") or cursor.at_end):
        token = cursor.token
        if cursor.at_any("PRIMARY", "COMPOSITE"):
            if primary_key:
                raise cursor.fail("PRIMARY KEY is given twice")
            cursor.advance()
            cursor.expect("KEY")
            primary_key = True
        elif cursor.take("COMMENT"):
            comment = cursor.string("a comment")
        elif (option := cursor.take_any(*_COLUMN_OPTIONS)) is not None:
            if option in options:
                raise cursor.fail(f"{option} is given twice", token)
            options[option] = cursor.string(f"the value of {option}")
        else:
            raise cursor.fail("',' or ')' is expected")
    return ColumnDefinition(name, data_type, primary_key, comment, tuple(options.items()))


def _parse_table_options(cursor: Cursor) -> tuple[str | None, int, tuple[tuple[str, str], ...]]:
    comment: str | None = None
    ttl = 0
    options: dict[str, str] = {}
    while True:
        if cursor.take("COMMENT"):
            comment = cursor.string("a comment")
        elif cursor.take("TTL"):
            ttl = cursor.integer("TTL", maximum=2**31 - 1)
        elif cursor.take("SMA"):
            options["SMA"] = ",".join(parse_parenthesised(cursor, lambda c: c.name("a column name")))
        elif cursor.take("KEEP"):
            options["KEEP"] = str(cursor.duration("KEEP"))
        elif (word := cursor.take_any("MAX_DELAY", "WATERMARK", "DELETE_MARK")) is not None:
            values = [str(cursor.duration(word))]
            while cursor.take_operator(","):
                values.append(str(cursor.duration(word)))
            options[word] = ",".join(values)
        elif cursor.take("ROLLUP"):
            options["ROLLUP"] = ",".join(parse_parenthesised(cursor, lambda c: c.name("a function name")))
        else:
            return comment, ttl, tuple(options.items())


def _parse_create_child_tables(cursor: Cursor, name: Name, if_not_exists: bool) -> Statement:
    tables = [_parse_child_table(cursor, name, if_not_exists)]
    while not cursor.at_end:
        cursor.take_operator(",")
        again = take_if_not_exists(cursor)
        tables.append(_parse_child_table(cursor, cursor.object_name("a table name"), again or if_not_exists))
    return CreateChildTables(tuple(tables))


def _parse_child_table(cursor: Cursor, name: Name, if_not_exists: bool) -> CreateChildTable:
    using, tag_names, tag_values = parse_using(cursor)
    comment: str | None = None
    ttl = 0
    while True:
        if cursor.take("COMMENT"):
            comment = cursor.string("a comment")
        elif cursor.take("TTL"):
            ttl = cursor.integer("TTL", maximum=2**31 - 1)
        else:
            return CreateChildTable(name, using, tag_names, tag_values, if_not_exists, comment, ttl)


def parse_using(cursor: Cursor) -> tuple[Name, tuple[str, ...] | None, tuple[exp.Expression, ...]]:
    """Parses `USING super [(tag, ...)] TAGS (value, ...)`. Raises SqlSyntaxError."""
    cursor.expect("USING")
    using = cursor.object_name("the name of a super table")
    tag_names: tuple[str, ...] | None = None
    if cursor.at_operator("("):
        tag_names = parse_parenthesised(cursor, lambda c: c.name("a tag name"))
    cursor.expect("TAGS")
    token = cursor.token
    values = parse_parenthesised(cursor, parse_tag_value)
    if tag_names is not None and len(tag_names) != len(values):
        raise cursor.fail(f"{len(tag_names)} tags are named, but the number of values is {len(values)}", token)
    return using, tag_names, values


def parse_tag_value(cursor: Cursor) -> exp.Expression:
    """Parses a constant: a tag's value. Raises SqlSyntaxError."""
    token = cursor.token
    value = parse_operand(cursor)
    if next(value.find_all(exp.Column), None) is not None:
        raise cursor.fail("a tag value must be a constant", token, hint="put text in quotes")
    return value


def parse_drop_table(cursor: Cursor, *, must_be_super: bool) -> Statement:
    """Parses what follows DROP TABLE or DROP STABLE."""
    if_exists = take_if_exists(cursor)
    names = [cursor.object_name("a table name")]
    while not must_be_super and cursor.take_operator(","):
        if_exists = take_if_exists(cursor) or if_exists
        names.append(cursor.object_name("a table name"))
    return DropTable(tuple(names), if_exists, must_be_super)


# --- ALTER TABLE ---


def parse_alter_table(cursor: Cursor, *, must_be_super: bool) -> Statement:
    """Parses what follows ALTER TABLE or ALTER STABLE."""
    name = cursor.object_name("a table name")

    def alter(action: AlterAction, **fields: object) -> AlterTable:
        return AlterTable(name, action, must_be_super=must_be_super, **fields)  # type: ignore[arg-type]

    if cursor.take("SET", "TAG") or cursor.take("SET", "TAGS"):
        return alter("set_tag", assignments=_parse_assignments(cursor))
    if cursor.at_any("COMMENT", "TTL", "KEEP"):
        return alter("set_option", option=_parse_alter_option(cursor))
    verb = cursor.take_any("ADD", "DROP", "MODIFY", "RENAME")
    if verb is None:
        raise cursor.fail("ADD, DROP, MODIFY, RENAME, SET TAG, COMMENT, TTL or KEEP is expected")
    noun = cursor.take_any("COLUMN", "TAG")
    if noun is None:
        raise cursor.fail("COLUMN or TAG is expected")
    column = cursor.name(f"a {noun.lower()} name")
    if verb == "DROP":
        return alter("drop_tag" if noun == "TAG" else "drop_column", column=column)
    if verb == "RENAME":
        cursor.take("TO")
        new_name = cursor.name(f"the new {noun.lower()} name")
        return alter("rename_tag" if noun == "TAG" else "rename_column", column=column, new_name=new_name)
    data_type = parse_data_type(cursor)
    while cursor.take_any(*_COLUMN_OPTIONS) is not None:
        cursor.string("the value of the option")
    if verb == "ADD":
        return alter("add_tag" if noun == "TAG" else "add_column", column=column, type=data_type)
    return alter("modify_tag" if noun == "TAG" else "modify_column", column=column, type=data_type)


def _parse_assignments(cursor: Cursor) -> tuple[tuple[str, exp.Expression], ...]:
    assignments: dict[str, exp.Expression] = {}
    while True:
        token = cursor.token
        tag = cursor.name("a tag name")
        if tag in assignments:
            raise cursor.fail(f"tag {tag} is set twice", token)
        cursor.expect_operator("=")
        assignments[tag] = parse_tag_value(cursor)
        if not cursor.take_operator(","):
            return tuple(assignments.items())


def _parse_alter_option(cursor: Cursor) -> tuple[str, str | int]:
    option = cursor.advance().word
    if option == "COMMENT":
        return option, cursor.string("a comment")
    if option == "TTL":
        return option, cursor.integer("TTL", maximum=2**31 - 1)
    return option, str(cursor.duration("KEEP"))
