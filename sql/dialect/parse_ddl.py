"""Parses CREATE, ALTER and DROP of tables, CREATE VIEW, and the options of databases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from sqlglot import exp
from sqlglot.tokens import Token, TokenType

from penstock.common.errors import PenstockError
from penstock.sql.dialect.parse_query import QueryParser
from penstock.sql.schema import is_time_key
from penstock.sql.tree.statements import (
    DURATION_OPTIONS,
    AlterAction,
    AlterTable,
    ColumnDefinition,
    CreateChildTable,
    CreateChildTables,
    CreateTable,
    CreateTableAs,
    CreateView,
    DropTable,
    Name,
    Statement,
    TagAssignment,
)
from penstock.sql.types import Kind

# What the value of each database option looks like: an integer, up to so many durations, or a string.
_INTEGER_OPTIONS = frozenset({
    "BUFFER", "CACHESIZE", "COMP", "COMPACT_TIME_OFFSET", "HASH_PREFIX", "HASH_SUFFIX", "MAXROWS", "MINROWS",
    "PAGES", "PAGESIZE", "REPLICA", "S3_CHUNKPAGES", "S3_CHUNKSIZE", "S3_COMPACT", "SINGLE_STABLE",
    "SS_CHUNKPAGES", "SS_COMPACT", "STT_TRIGGER", "TABLE_PREFIX", "TABLE_SUFFIX", "TSDB_PAGESIZE", "VGROUPS",
    "WAL_FSYNC_PERIOD", "WAL_LEVEL", "WAL_RETENTION_PERIOD", "WAL_RETENTION_SIZE", "WAL_ROLL_PERIOD",
    "WAL_SEGMENT_SIZE",
})
_SIGNED_OPTIONS = frozenset({"WAL_RETENTION_PERIOD", "WAL_RETENTION_SIZE"})
STRING_OPTIONS = frozenset({
    "CACHEMODEL", "ENCRYPT_ALGORITHM", "PRECISION", "STRICT", "DNODES", "REPLICA_MISSING"})
_COLUMN_OPTIONS = ("ENCODE", "COMPRESS", "LEVEL")
_MAX_KEEP = 365_000 * 1440


# --- databases ---


def parse_database_options(parser: QueryParser) -> tuple[tuple[str, str | int], ...]:
    """Parses `option value ...`, up to the end of the statement."""
    return tuple(parser.options(DATABASE_OPTIONS, "a database option").items())


def parse_database_changes(parser: QueryParser) -> tuple[tuple[str, str | int], ...]:
    """Parses such options, of which there is one at least."""
    options = parse_database_options(parser)
    if not options:
        raise parser.fail("an option is expected", hint="such as KEEP 365d")
    return options


def _parse_database_option(option: str, parser: QueryParser) -> str | int:
    if option in STRING_OPTIONS and parser.at_type(TokenType.STRING):
        return str(parser.advance().text)
    if option in DURATION_OPTIONS:
        return _parse_durations(parser, option, DURATION_OPTIONS[option])
    if option in _INTEGER_OPTIONS:
        return parser.integer(option, minimum=-1 if option in _SIGNED_OPTIONS else 0)
    return parser.string(option)


def _parse_durations(parser: QueryParser, option: str, maximum: int) -> str | int:
    """Parses `20`, `20d` or, where several are allowed, `20d,30d,40d`; a lone integer stays one."""
    values: list[str] = []
    while True:
        token = parser.token
        if token.token_type is TokenType.STRING:
            raise parser.fail(f"{option} takes integers or durations without quotes")
        duration = parser.duration(f"the value of {option}")
        values.append(str(duration))
        if not parser.take(","):
            break
        if len(values) == maximum:
            raise parser.fail(f"{option} takes at most {maximum} value{'s' if maximum > 1 else ''}")
    return int(values[0]) if len(values) == 1 and values[0].isdigit() else ",".join(values)


DATABASE_OPTIONS = {option: partial(_parse_database_option, option) for option in sorted(
    _INTEGER_OPTIONS | STRING_OPTIONS | set(DURATION_OPTIONS))}


# --- tables ---


def parse_create_table(parser: QueryParser, *, must_be_super: bool) -> Statement:
    """Parses what follows CREATE TABLE or CREATE STABLE."""
    if_not_exists = parser.take_if_not_exists()
    name = parser.object_name("a table name")
    if parser.at("USING") and not must_be_super:
        return _parse_create_child_tables(parser, name, if_not_exists)
    if not must_be_super and parser.at_any("PRIMARY", "AS"):
        key = _parse_key(parser)[1] if parser.at("PRIMARY") else ()
        parser.expect("AS")
        return CreateTableAs(name, parser.parse_rows(), if_not_exists, key)
    columns = _parse_columns(parser)
    tags: tuple[ColumnDefinition, ...] = ()
    if must_be_super:
        parser.expect("TAGS")
        tags = parser.wrapped_csv(lambda: parse_column_definition(parser))
    elif parser.take("TAGS"):
        tags = parser.wrapped_csv(lambda: parse_column_definition(parser))
    comment, ttl, options = _parse_table_options(parser)
    return CreateTable(name, columns, tags, if_not_exists, must_be_super, comment, ttl, options)


def _parse_columns(parser: QueryParser) -> tuple[ColumnDefinition, ...]:
    """Parses column definitions in parentheses, among which PRIMARY KEY (names) may stand."""
    found = parser.wrapped_csv(
        lambda: _parse_key(parser) if parser.at("PRIMARY", "KEY") else parse_column_definition(parser))
    columns = tuple(item for item in found if isinstance(item, ColumnDefinition))
    keys = [item for item in found if not isinstance(item, ColumnDefinition)]
    for token, key in keys:
        if len(keys) > 1 or any(column.primary_key for column in columns):
            raise parser.fail("PRIMARY KEY is given twice", token)
        columns = with_key(columns, key, partial(parser.fail, token=token))
    return with_time(columns)


def _parse_key(parser: QueryParser) -> tuple[Token, tuple[str, ...]]:
    """Parses `PRIMARY KEY (name, ...)`; returns where it stands, and the names."""
    token = parser.token
    parser.expect("PRIMARY")
    parser.expect("KEY")
    return token, parser.wrapped_csv(lambda: parser.name("a column name"))


def with_key(
    columns: Sequence[ColumnDefinition], key: Sequence[str], fail: Callable[[str], PenstockError]
) -> tuple[ColumnDefinition, ...]:
    """Returns the columns of which some are the key; raises what `fail` makes of a reason."""
    names = [column.name for column in columns]
    for place, name in enumerate(key):
        if name not in names:
            raise fail(f"column {name} of the primary key does not exist")
        if name in key[:place]:
            raise fail(f"column {name} is in the primary key twice")
    if columns and columns[0].type.kind is Kind.TIMESTAMP and names[0] not in key:
        raise fail(f"{names[0]} is the time of the table, and belongs to its primary key")
    return with_time(tuple(column.with_changes(primary_key=column.name in key) for column in columns))


def with_time(columns: tuple[ColumnDefinition, ...]) -> tuple[ColumnDefinition, ...]:
    """Returns the columns without a word on the first if it is a timestamp: the primary one needs none."""
    key = [column for column in columns if column.primary_key]
    if is_time_key([(column.type, column in columns[:2]) for column in key]):
        return (columns[0].with_changes(primary_key=False), *columns[1:])
    return columns


def parse_column_definition(parser: QueryParser) -> ColumnDefinition:
    """Parses `name type [PRIMARY KEY] [COMMENT text] [ENCODE ..] [COMPRESS ..] [LEVEL ..]`."""
    token = parser.token
    name = parser.name("a column name")
    if name == "tbname":
        raise parser.fail("tbname is the name of every table's own name; a column needs another", token)
    data_type = parser.parse_data_type()
    primary_key = False
    comment: str | None = None
    options: dict[str, str] = {}
    while not (parser.at(",") or parser.at(")") or parser.at_end):
        token = parser.token
        if parser.at_any("PRIMARY", "COMPOSITE"):
            if primary_key:
                raise parser.fail("PRIMARY KEY is given twice")
            parser.advance()
            parser.expect("KEY")
            primary_key = True
        elif parser.take("COMMENT"):
            comment = parser.string("a comment")
        elif (option := parser.take_any(*_COLUMN_OPTIONS)) is not None:
            if option in options:
                raise parser.fail(f"{option} is given twice", token)
            options[option] = parser.string(f"the value of {option}")
        else:
            raise parser.fail("',' or ')' is expected")
    return ColumnDefinition(name, data_type, primary_key, comment, tuple(options.items()))


def _parse_table_options(parser: QueryParser) -> tuple[str | None, int, tuple[tuple[str, str], ...]]:
    comment: str | None = None
    ttl = 0
    options: dict[str, str] = {}
    while True:
        if parser.take("COMMENT"):
            comment = parser.string("a comment")
        elif parser.take("TTL"):
            ttl = parser.integer("TTL", maximum=2**31 - 1)
        elif parser.take("SMA"):
            options["SMA"] = ",".join(parser.wrapped_csv(lambda: parser.name("a column name")))
        elif parser.take("KEEP"):
            options["KEEP"] = str(parser.duration("KEEP"))
        elif (word := parser.take_any("MAX_DELAY", "WATERMARK", "DELETE_MARK")) is not None:
            values = [str(parser.duration(word))]
            while parser.take(","):
                values.append(str(parser.duration(word)))
            options[word] = ",".join(values)
        elif parser.take("ROLLUP"):
            options["ROLLUP"] = ",".join(parser.wrapped_csv(lambda: parser.name("a function name")))
        else:
            return comment, ttl, tuple(options.items())


def _parse_create_child_tables(parser: QueryParser, name: Name, if_not_exists: bool) -> Statement:
    tables = [_parse_child_table(parser, name, if_not_exists)]
    while not parser.at_end:
        parser.take(",")
        again = parser.take_if_not_exists()
        tables.append(_parse_child_table(parser, parser.object_name("a table name"), again or if_not_exists))
    return CreateChildTables(tuple(tables))


def _parse_child_table(parser: QueryParser, name: Name, if_not_exists: bool) -> CreateChildTable:
    using, tag_names, tag_values = parse_using(parser)
    comment: str | None = None
    ttl = 0
    while True:
        if parser.take("COMMENT"):
            comment = parser.string("a comment")
        elif parser.take("TTL"):
            ttl = parser.integer("TTL", maximum=2**31 - 1)
        else:
            return CreateChildTable(name, using, tag_names, tag_values, if_not_exists, comment, ttl)


def parse_using(parser: QueryParser) -> tuple[Name, tuple[str, ...] | None, tuple[exp.Expression, ...]]:
    """Parses `USING super [(tag, ...)] TAGS (value, ...)`. Raises SqlSyntaxError."""
    parser.expect("USING")
    using = parser.object_name("the name of a super table")
    tag_names: tuple[str, ...] | None = None
    if parser.at("("):
        tag_names = parser.wrapped_csv(lambda: parser.name("a tag name"))
    parser.expect("TAGS")
    token = parser.token
    values = parser.wrapped_csv(lambda: parse_tag_value(parser))
    if tag_names is not None and len(tag_names) != len(values):
        raise parser.fail(f"{len(tag_names)} tags are named, but the number of values is {len(values)}", token)
    return using, tag_names, values


def parse_tag_value(parser: QueryParser) -> exp.Expression:
    """Parses a constant: a tag's value. Raises SqlSyntaxError."""
    token = parser.token
    value = parser.parse_operand()
    if next(value.find_all(exp.Column), None) is not None:
        raise parser.fail("a tag value must be a constant", token, hint="put text in quotes")
    return value


def parse_drop_table(parser: QueryParser, *, must_be_super: bool) -> Statement:
    """Parses what follows DROP TABLE or DROP STABLE."""
    if_exists = parser.take_if_exists()
    names = [parser.object_name("a table name")]
    while not must_be_super and parser.take(","):
        if_exists = parser.take_if_exists() or if_exists
        names.append(parser.object_name("a table name"))
    return DropTable(tuple(names), if_exists, must_be_super, parser.take("CASCADE"))


# --- ALTER TABLE ---


def parse_alter_table(parser: QueryParser, *, must_be_super: bool) -> Statement:
    """Parses what follows ALTER TABLE or ALTER STABLE."""
    name = parser.object_name("a table name")

    def alter(action: AlterAction, **fields: object) -> AlterTable:
        return AlterTable(name, action, must_be_super=must_be_super, **fields)  # type: ignore[arg-type]

    if parser.take("SET", "TAG") or parser.take("SET", "TAGS"):
        return alter("set_tag", assignments=_parse_assignments(parser))
    if parser.at_any("COMMENT", "TTL", "KEEP"):
        return alter("set_option", option=_parse_alter_option(parser))
    verb = parser.take_any("ADD", "DROP", "MODIFY", "RENAME")
    if verb is None:
        raise parser.fail("ADD, DROP, MODIFY, RENAME, SET TAG, COMMENT, TTL or KEEP is expected")
    noun = parser.take_any("COLUMN", "TAG")
    if noun is None:
        raise parser.fail("COLUMN or TAG is expected")
    column = parser.name(f"a {noun.lower()} name")
    if verb == "DROP":
        return alter("drop_tag" if noun == "TAG" else "drop_column", column=column)
    if verb == "RENAME":
        parser.take("TO")
        new_name = parser.name(f"the new {noun.lower()} name")
        return alter("rename_tag" if noun == "TAG" else "rename_column", column=column, new_name=new_name)
    data_type = parser.parse_data_type()
    while parser.take_any(*_COLUMN_OPTIONS) is not None:
        parser.string("the value of the option")
    if verb == "ADD":
        return alter("add_tag" if noun == "TAG" else "add_column", column=column, type=data_type)
    return alter("modify_tag" if noun == "TAG" else "modify_column", column=column, type=data_type)


def _parse_assignments(parser: QueryParser) -> tuple[TagAssignment, ...]:
    assignments: dict[str, exp.Expression] = {}
    while True:
        token = parser.token
        tag = parser.name("a tag name")
        if tag in assignments:
            raise parser.fail(f"tag {tag} is set twice", token)
        parser.expect("=")
        assignments[tag] = parse_tag_value(parser)
        if not parser.take(","):
            return tuple(TagAssignment(tag, value) for tag, value in assignments.items())


def _parse_alter_option(parser: QueryParser) -> tuple[str, str | int]:
    option = parser.advance().text.upper()
    if option == "COMMENT":
        return option, parser.string("a comment")
    if option == "TTL":
        return option, parser.integer("TTL", maximum=2**31 - 1)
    return option, str(parser.duration("KEEP"))


def parse_create_view(parser: QueryParser, *, or_replace: bool) -> Statement:
    """Parses what follows CREATE [OR REPLACE] VIEW."""
    if_not_exists = not or_replace and parser.take_if_not_exists()
    name = parser.object_name("a view name")
    columns = parser.column_names() if parser.at("(") else ()
    invoker = False
    if parser.take("SQL"):
        parser.expect("SECURITY")
        invoker = parser.one_of("DEFINER", "INVOKER") == "invoker"
    parser.expect("AS")
    return CreateView(name, parser.parse_rows(), columns, invoker, or_replace, if_not_exists)
