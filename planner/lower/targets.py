"""Where results of streams go: values as the target's types, and the SQL of names and tags of child tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlglot import exp

from penstock.planner.duckdb_sql.duckdb_tree import (
    Tree,
    cast,
    closed,
    column,
    fragment,
    let,
    named,
    null,
    or_null,
    render,
    replaced_columns,
    select,
    text,
    try_cast,
)
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.logical.stream import GROUP, StreamKey, Target
from penstock.planner.scalar.scalar_cast import integer_fits
from penstock.planner.task_plans.column_names import CHILD, PROBLEM
from penstock.planner.task_plans.stream_plan import Field, SinkPlan
from penstock.sql.schema import Column
from penstock.sql.types import FLOATS, INTEGERS, STRINGS, DataType, Kind

_SUBTABLE = """
coalesce(CASE
    WHEN :number = 0 OR ends_with(:given, :number::VARCHAR) THEN :given
    WHEN length(:given) = 34 AND starts_with(:given, 't_') THEN :given
    WHEN strlen(:given || :suffix) <= 192 THEN :given || :suffix
    WHEN strlen(:given) <= 159 THEN :given || '_' || md5(:suffix)
    ELSE md5(:given) || '_' || md5(:suffix) END, :hashed)"""


#: A name has at most 192 bytes, and a character at most four.
_EXACT = """
coalesce(CASE
    WHEN strlen(:given) <= 192 THEN nullif(:given, '')
    WHEN strlen(:given) = length(:given) THEN left(:given, 192)
    ELSE left(:given, 48) END, :hashed)"""


def key_fields(keys: Sequence[StreamKey]) -> tuple[Field, ...]:
    """Returns the keys as columns of blocks."""
    return tuple(key_field(place, key.type) for place, key in enumerate(keys))


def key_field(place: int, type_: DataType) -> Field:
    """Returns the n-th key as a column of blocks."""
    return Field(f"k{place}", type_)


def always_fits(value: SqlExpr, target: DataType) -> bool:
    """Whether types show that each value of an expression fits the type of what takes it, rounded perhaps."""
    source, kind = value.type, target.kind
    if source.kind is Kind.NULL or kind is Kind.NULL:
        return True
    if target.length is not None:
        # What functions make of texts may be longer than they say; columns are checked where they are written.
        return isinstance(value.node, exp.Column) and source.length is not None and \
            _bytes_per_unit(source, target) * source.length <= target.length
    if Kind.DECIMAL in (source.kind, kind):
        return source.kind is kind and _whole_digits(source) <= _whole_digits(target)
    if source.kind is kind or kind in STRINGS or kind in (Kind.BOOL, Kind.DOUBLE):
        return source.kind is kind or kind in STRINGS or source.kind in (*INTEGERS, *FLOATS, Kind.BOOL)
    if source.kind is Kind.BOOL:
        return kind in (*INTEGERS, *FLOATS)
    if source.kind in INTEGERS:
        return kind is Kind.FLOAT or (kind is Kind.TIMESTAMP and source.kind is not Kind.UBIGINT) or (
            kind in INTEGERS and integer_fits(source.kind, kind))
    return source.kind is Kind.TIMESTAMP and kind is Kind.BIGINT


def _bytes_per_unit(source: DataType, target: DataType) -> int:
    """How much of the target's length one unit of the source's takes at most: one is bytes, or characters for NCHAR."""
    return 4 if source.kind is Kind.NCHAR and target.kind is not Kind.NCHAR else 1


def _whole_digits(kind: DataType) -> int:
    return (kind.digits or 38) - (kind.scale or 0)


def converted(value: SqlExpr, target: DataType) -> Tree:
    """Returns `value` as the target column's type; a value that doesn't fit becomes NULL rather than an error."""
    if target.kind is Kind.TIMESTAMP and value.type.kind is Kind.TIMESTAMP:
        return cast(value.node, "BIGINT")
    if target.is_string or target.kind is Kind.VARBINARY:
        text = _as_text(value, target)
        return text if target.length is None or always_fits(value, target) else let(text, lambda known: fragment(
            "CASE WHEN :length <= :most THEN :text END", length=_length(known, target), most=target.length, text=known))
    return try_cast(value.node, target.duckdb())


def _as_text(value: SqlExpr, target: DataType) -> Tree:
    same = value.type.kind is target.kind or (value.type.is_string and target.is_string)
    return value.node if same else cast(value.node, target.duckdb())


def _length(text: Tree, target: DataType) -> Tree:
    """What the length of the target's type bounds: characters of NCHAR, bytes of the others."""
    of_kind = {Kind.NCHAR: "length(:text)", Kind.VARBINARY: "octet_length(:text)"}
    return fragment(of_kind.get(target.kind, "strlen(:text)"), text=text)


def _misfits(value: SqlExpr, target: DataType) -> Tree:
    if target.length is None:
        return fragment(":value IS NOT NULL AND :made IS NULL", value=value.node, made=converted(value, target))
    return fragment(":length > :most", length=_length(_as_text(value, target), target), most=target.length)


def problem_of(values: Sequence[SqlExpr], columns: Sequence[Column], what: str = "column") -> Tree | None:
    """Returns text that names the first value that doesn't fit its column, NULL if all do; None: types show it."""
    problem: Tree | None = None
    for value, target in reversed(list(zip(values, columns, strict=True))):
        if not always_fits(value, target.type):
            problem = fragment(
                "CASE WHEN :misfits THEN concat(:before, left(:value::VARCHAR, 100), :behind) ELSE :rest END",
                misfits=_misfits(value, target.type), value=value.node,
                before=f"{what} {target.name}: ", behind=f" does not fit {target.type.sql()}",
                rest=null("VARCHAR") if problem is None else problem)
    return problem


def once_computed(values: Sequence[SqlExpr], columns: Sequence[Column]) -> tuple[list[SqlExpr], list[Tree]]:
    """Returns the values as `converted_results` takes them where a step before has computed what it would name twice:
    the columns that this step makes, with their names, come second.
    """
    found, made = list(values), []
    for place, (value, target) in enumerate(zip(values, columns, strict=True)):
        if not always_fits(value, target.type) and not isinstance(value.node, exp.Column):
            # Without a length: what functions make of texts may be longer than they say.
            found[place] = SqlExpr(column(f"#v{place}"), replace(value.type, length=None))
            made.append(named(value.node, f"#v{place}"))
    return found, made


def converted_results(values: Sequence[SqlExpr], columns: Sequence[Column]) -> list[Tree]:
    """Returns each value as the type of the target column that takes it, and last what `problem_of` says, if it does.

    Rows with a problem are not to be written; see `SinkPlan.checks_results`.
    """
    problem = problem_of(values, columns)
    return [*(converted(value, column.type) for value, column in zip(values, columns, strict=True)),
            *([] if problem is None else [problem])]


def tolerant(value: SqlExpr) -> SqlExpr:
    """Returns a value over groups or windows that is NULL where it can't be computed: no row can be left out for it."""
    return value if value.constant is not None else SqlExpr(or_null(value.node), value.type)


def sink_plan(
    target: Target, keys: Sequence[StreamKey], *, leaves_out_errors: bool = False, group_is_table: bool = False
) -> SinkPlan:
    """Returns what sink tasks need to know. `leaves_out_errors`: no value may stop the stream. `group_is_table`: groups
    have the uids of tables."""
    if leaves_out_errors and target.child is not None:
        target = replace(target, child=tolerant(target.child))
    children = _children(target, keys, target.uid_shift if group_is_table else 0)
    return SinkPlan(target.database, target.table, target.columns, target.tags, render(children),
                    target.uid, target.create, target.external, target.checks_results, target.tag_problem is not None,
                    target.key_places, single=target.single)


def group_text(values: Sequence[str]) -> str:
    """Returns SQL for what groups without child tables are told apart by: their values, given as SQL, as text."""
    return f"[{', '.join(f'{value}::VARCHAR' for value in values)}]::VARCHAR[]::VARCHAR"


def _children(target: Target, keys: Sequence[StreamKey], shift: int) -> Tree:
    """The SELECT from `groups` to names of child tables (tdengine.md 1.7) and values of tags."""
    of_blocks: dict[str, Tree] = {key.name: column(field.name)
                                  for key, field in zip(keys, key_fields(keys), strict=True)}
    if target.keyed:
        return select([column("_gid"), named(text(target.table), CHILD)], "groups")
    number = fragment(f"(_gid::BIGINT - ({shift}))::UBIGINT") if shift else column("_gid")
    place = f"{target.home or target.database}.{target.table if target.external is None else target.external.place}"
    child = fragment("'t_' || md5(:target || ',' || :number::VARCHAR)", target=place, number=number)
    if target.child is not None and target.exact_child:
        child = fragment(_EXACT, given=closed(replaced_columns(target.child.node, of_blocks)), hashed=child)
    elif target.child is not None:
        child = fragment(_SUBTABLE, given=closed(replaced_columns(target.child.node, of_blocks)), hashed=child,
                         suffix=fragment(":name || :number::VARCHAR", name=f"_{target.table}_", number=number),
                         number=number)
    of_blocks[GROUP] = number
    tags = [named(replaced_columns(value.node, of_blocks), f"t{n}") for n, value in enumerate(target.tag_values)]
    if target.tag_problem is not None:
        tags.append(named(replaced_columns(target.tag_problem.node, of_blocks), PROBLEM))
    return select([column("_gid"), named(child, CHILD), *tags], "groups")
