"""What the columns and tags of one table can be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.common.errors import InvalidStatementError
from penstock.mnode.ddl.name_rules import check_name
from penstock.sql.schema import UNSEEN, Column
from penstock.sql.types import INTEGERS, DataType, Kind
from penstock.vnode.write.table_definitions import RESERVED_COLUMNS

MAX_COLUMNS = 4096
MAX_TAGS = 128
MAX_TAG_BYTES = 16 * 1024
MAX_ROW_BYTES = 64 * 1024
MAX_LENGTH = {"column": 65_517, "tag": 16_382}
VARIABLE = (Kind.VARCHAR, Kind.NCHAR, Kind.VARBINARY, Kind.GEOMETRY)

_RESERVED = {*RESERVED_COLUMNS, *UNSEEN}
_BAD_COLUMNS = 0x263F
_DUPLICATE = 0x263C
_BAD_TIME_COLUMN = 0x2641


def check_columns(columns: Sequence[Column], tags: Sequence[Column]) -> None:
    """Raises `InvalidStatementError` unless these can be the columns and tags of one table."""
    keyed = any(column.primary_key for column in columns) and (
        columns[0].primary_key or columns[0].type.kind is not Kind.TIMESTAMP)
    if keyed:
        _check_key(columns, tags)
    elif columns[0].type.kind is not Kind.TIMESTAMP:
        raise InvalidStatementError(
            f"the first column must be a TIMESTAMP, {columns[0].name} is {columns[0].type.sql()}",
            code=_BAD_TIME_COLUMN, hint=f"or the table's key: PRIMARY KEY ({columns[0].name})")
    if len(columns) < 2 and not keyed:
        raise InvalidStatementError("a table needs a column besides its timestamp", code=_BAD_COLUMNS)
    if len(columns) + len(tags) > MAX_COLUMNS:
        raise InvalidStatementError(f"a table can have {MAX_COLUMNS} columns with tags, not {len(columns) + len(tags)}",
                                    code=_BAD_COLUMNS)
    if len(tags) > MAX_TAGS:
        raise InvalidStatementError(f"a table can have {MAX_TAGS} tags, not {len(tags)}", code=_BAD_COLUMNS)
    _check_names((*columns, *tags))
    for place, column in enumerate(columns):
        _check_length(column, "column")
        if column.type.kind is Kind.JSON:
            raise InvalidStatementError(f"column {column.name}: JSON is for tags only")
        if column.primary_key and not keyed and (place != 1 or column.type.kind not in (*INTEGERS, Kind.VARCHAR)):
            raise InvalidStatementError(
                f"column {column.name} cannot be a part of the primary key",
                hint="beside a time only the second column can, if it is an integer or VARCHAR")
    for tag in tags:
        _check_length(tag, "tag")
        if tag.type.kind is Kind.DECIMAL:
            raise InvalidStatementError(f"tag {tag.name}: a tag cannot be a DECIMAL")
        if tag.type.kind is Kind.JSON and len(tags) > 1:
            raise InvalidStatementError(f"tag {tag.name}: a JSON tag must be the only one")
        if tag.primary_key:
            raise InvalidStatementError(f"tag {tag.name}: a tag cannot be a part of the primary key")
    _check_size(columns, MAX_ROW_BYTES, "row")
    _check_size(tags, MAX_TAG_BYTES, "set of tags")


def _check_key(columns: Sequence[Column], tags: Sequence[Column]) -> None:
    if tags:
        raise InvalidStatementError("a super table cannot have a key in place of a time", code=_BAD_TIME_COLUMN,
                                    hint="its rows are those of many devices: begin with a TIMESTAMP")
    for column in columns:
        if column.primary_key and column.type.kind is Kind.GEOMETRY:
            raise InvalidStatementError(f"column {column.name}: GEOMETRY cannot be a part of the primary key")


def longer(column: Column, kind: DataType) -> DataType:
    """Returns the longer type that a column may get. Raises `InvalidStatementError` if it is none."""
    old = column.type
    if old.kind not in VARIABLE or kind.kind is not old.kind:
        raise InvalidStatementError(
            f"{column.name} is {old.sql()} and cannot become {kind.sql()}",
            hint="only the length of strings can grow")
    if (kind.length or 0) <= (old.length or 0):
        raise InvalidStatementError(f"{column.name} is {old.sql()}: its length can only grow, not become {kind.length}")
    return kind


def _check_names(columns: Iterable[Column]) -> None:
    seen: set[str] = set()
    for column in columns:
        check_name(column.name, "column")
        if column.name == "tbname":
            raise InvalidStatementError("tbname is the name of the child table and cannot be a column")
        if column.name in _RESERVED:
            raise InvalidStatementError(f"{column.name} cannot be a column: stored rows have one of that name",
                                        hint="choose another name")
        if column.name in seen:
            raise InvalidStatementError(f"there are two columns or tags named {column.name}", code=_DUPLICATE)
        seen.add(column.name)


def _check_length(column: Column, what: str) -> None:
    kind, length = column.type.kind, column.type.length
    if kind not in VARIABLE:
        return
    limit = MAX_LENGTH[what] // (4 if kind is Kind.NCHAR else 1)
    if length is not None and not 1 <= length <= limit:
        raise InvalidStatementError(f"{what} {column.name}: {kind} can have a length of 1 to {limit}, not {length}")


def _check_size(columns: Sequence[Column], limit: int, what: str) -> None:
    size = sum(_stored_bytes(column.type) for column in columns)
    if size > limit:
        raise InvalidStatementError(f"a {what} of the table can have {size} bytes, at most {limit} are allowed")


def _stored_bytes(kind: DataType) -> int:
    if kind.kind is Kind.NCHAR:
        return 4 * (kind.length or 0) + 2
    return kind.width() + 2 if kind.kind in VARIABLE else kind.width()
