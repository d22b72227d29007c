"""The long reference of the functions: from their table, from the planner, and from examples that are run."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from itertools import count, groupby
from operator import attrgetter

import sqlglot
from function_examples import EXAMPLES, SETUP
from sqlglot.tokens import TokenType

import penstock
from penstock.mnode.engine import Engine
from penstock.planner.bind.aggregate_calls import aggregate_call
from penstock.planner.duckdb_sql.duckdb_tree import parse_tree, render
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.functions.aggregates import text_of_all
from penstock.planner.functions.conditional import type_of_branches
from penstock.planner.functions.duckdb_calls import listed
from penstock.planner.functions.spec import (
    ANY,
    NUMBERS,
    describe_kinds,
    joined_text,
    joined_with_separator,
    same_as_first,
    sum_type,
    text_of_first,
)
from penstock.planner.functions.table import FUNCTIONS, Argument, FunctionSpec
from penstock.planner.logical.group_values import AggregateCall, RowKey
from penstock.planner.logical.operators import Operator, Project, inputs_of
from penstock.planner.lower.duckdb.aggregate_sql import aggregate
from penstock.planner.lower.partial_aggregates import split
from penstock.planner.query.select import plan_query
from penstock.planner.scalar.common_type import common_type
from penstock.shell.terminal.result_format import Style, text_columns
from penstock.sql.dialect.parser import parse_one
from penstock.sql.schema import Session
from penstock.sql.tree.statements import Duration, Select
from penstock.sql.types import BIGINT, UBIGINT, VARCHAR, DataType, Kind, timestamp

_CATEGORIES = {
    "aggregate": "Aggregates", "pseudo": "Pseudo columns", "scalar": "Functions of one row",
    "selection": "Selection functions", "timeseries": "Functions along the time line",
}
_RULES = {
    common_type: "the type that all arguments are brought to, texts before numbers",
    type_of_branches: "the type that both values are brought to, texts before numbers",
    same_as_first: "the type of the first argument",
    sum_type: "BIGINT for signed and BIGINT UNSIGNED for unsigned integers, DECIMAL for DECIMAL, else DOUBLE",
    joined_text: "VARCHAR, or NCHAR if any argument is NCHAR",
    joined_with_separator: "VARCHAR, or NCHAR if any argument is NCHAR",
    text_of_all: "VARCHAR, or NCHAR if any argument is NCHAR",
    text_of_first: "VARCHAR or NCHAR, as the first argument",
}
_SHORT = 90


def long_reference() -> str:
    """Returns a section per function: arguments, result, what streams make of it, what DuckDB computes, an example."""
    with tempfile.TemporaryDirectory() as folder, penstock.connect(folder, {"timezone": "UTC"}) as connection:
        for statement in SETUP:
            connection.execute(statement)
        lines: list[str] = []
        specs = sorted(FUNCTIONS.values(), key=lambda spec: (spec.category, spec.name))
        for category, members in groupby(specs, key=lambda spec: spec.category):
            lines += [f"## {_CATEGORIES[category]}", ""]
            for spec in members:
                lines += [f"### {spec.signature}", "", spec.summary, ""]
                lines += [*_facts(spec, connection), ""]
        return "\n".join([*lines, *_duckdb_functions()])


def _duckdb_functions() -> Iterator[str]:
    yield from ("## DuckDB's functions, by group", "", "| group | functions |", "|---|---|")
    others = [each for each in listed().values() if each.name not in FUNCTIONS]
    for group, members in groupby(sorted(others, key=attrgetter("group", "name")), key=attrgetter("group")):
        names = ", ".join(f"`{each.name}`{' (volatile)' if each.volatile else ''}" for each in members)
        yield f"| {group} | {names} |"
    yield ""


def _facts(spec: FunctionSpec, connection: penstock.Connection) -> Iterator[str]:
    yield from (f"- {_argument(argument)}." for argument in spec.arguments)
    yield f"- Result: {_result(spec)}."
    yield f"- In streams: {_in_streams(spec)}."
    computed = _duckdb(spec, connection.lease.engine)
    if computed:
        yield f"- In DuckDB: {computed}."
    statement = f"SELECT {EXAMPLES[spec.name]}"
    table = connection.execute(statement).fetch_arrow()
    table = table.rename_columns([str(index) for index in range(table.num_columns)])
    columns = [cells.values for cells in text_columns(table, Style())]
    rows = [", ".join("NULL" if value is None else value for value in row) for row in zip(*columns, strict=True)]
    yield f"- Example: `{statement}` gives `{' / '.join(rows)}`."


def _argument(argument: Argument) -> str:
    accepts = "a duration such as `1s`" if argument.duration else (
        "anything" if argument.accepts >= ANY else describe_kinds(argument.accepts))
    if argument.choices:
        accepts = "one of " + ", ".join(f"`{choice}`" for choice in argument.choices)
    elif argument.low is not None:
        accepts = f"{accepts} from {argument.low} to {argument.high}"
    notes = [note for note, holds in (
        ("or `*`", argument.star), ("a constant", argument.literal), ("optional", argument.optional),
        (f"up to {argument.repeats} times", argument.repeats > 1)) if holds]
    return f"`{argument.name}`: {accepts}" + "".join(f", {note}" for note in notes)


def _result(spec: FunctionSpec) -> str:
    if spec.name == "cols":
        return "the types of the expressions"
    if spec.result in _RULES:
        return _RULES[spec.result]
    types = [type_ for type_, _ in _samples(spec)]
    least, more = spec.result(types).sql(), spec.result([*types, BIGINT]).sql() if types else ""
    return f"{least}; {more} with more arguments" if spec.arguments[-1:] and more not in ("", least) else least


def _samples(spec: FunctionSpec) -> list[tuple[DataType, object]]:
    """Returns a type and, where one is needed, a constant for each argument that cannot be left out."""
    samples: list[tuple[DataType, object]] = []
    for argument in spec.arguments[:spec.minimum]:
        constant: object = None
        if argument.duration:
            constant = Duration(1, "s")
        elif argument.choices:
            constant = argument.choices[0]
        elif argument.literal:
            number = 1 if argument.low is None else argument.low
            constant = number if argument.accepts == NUMBERS else "[0, 1]"
        kinds = (Kind.INT, Kind.BIGINT, Kind.TIMESTAMP, Kind.VARCHAR)
        kind = next((kind for kind in kinds if kind in argument.accepts), Kind.VARCHAR)
        type_ = {Kind.TIMESTAMP: timestamp(), Kind.BIGINT: BIGINT, Kind.VARCHAR: VARCHAR}.get(kind, DataType(kind))
        samples.append((type_, constant))
    return samples


def _sample_call(spec: FunctionSpec) -> AggregateCall:
    arguments = [SqlExpr(parse_tree(spec.arguments[index].name), type_, constant)
                 for index, (type_, constant) in enumerate(_samples(spec))]
    row = RowKey(SqlExpr(parse_tree("ts"), timestamp()), SqlExpr(parse_tree("_tuid"), UBIGINT))
    return aggregate_call("a", spec.name, arguments, row)


def allowed_in_streams(spec: FunctionSpec) -> str:
    """Returns whether streams may use a function, in words."""
    if spec.only_force_window_close:
        return "with FORCE_WINDOW_CLOSE only"
    if spec.in_stream:
        return "yes"
    return "no" if spec.volatile or spec.category in ("scalar", "pseudo") else "recomputed"


def _in_streams(spec: FunctionSpec) -> str:
    allowed = allowed_in_streams(spec)
    if not spec.in_stream:
        return allowed
    if spec.category not in ("aggregate", "selection"):
        return allowed
    if spec.split is None:
        return allowed
    numbers = count()
    partial = split(_sample_call(spec), lambda: f"p{next(numbers)}")
    made = ", ".join(render(tree) for part in partial.parts for tree in ([part.struct] if part.struct is not None
                                                                         else part.columns))
    combined = ", ".join(f"{accumulator.kind}({', '.join(field.name for field in accumulator.fields)})"
                         for accumulator in partial.accumulators)
    value = render(partial.final)
    return f"{allowed}; source tasks send `{made}`, combined by `{combined}`, and the value is `{value}`"


def _duckdb(spec: FunctionSpec, engine: Engine) -> str:
    if spec.category == "pseudo" or spec.of_call or spec.of_keys:
        return ""
    if spec.category == "aggregate" and spec.name not in ("twa", "elapsed", "histogram"):
        call = _sample_call(spec)
        return _shown(render(aggregate(call)))
    query = parse_one(f"SELECT {EXAMPLES[spec.name]}")
    assert isinstance(query, Select)
    plan = plan_query(query, engine.catalog, Session("docs", "UTC", 0))
    if spec.category == "scalar":
        *_, made = (operator for operator in _chain(plan.plan) if isinstance(operator, Project))
        return _shown(render(made.columns[0].value.node))
    return _functions(plan.sql)


def _chain(operator: Operator) -> Iterator[Operator]:
    """Yields an operator and those below it, of one input each."""
    yield operator
    for below in inputs_of(operator)[:1]:
        yield from _chain(below)


def _shown(sql: str) -> str:
    return f"`{sql}`" if len(sql) <= _SHORT and "\n" not in sql else _functions(sql)


def _functions(sql: str) -> str:
    """Returns which functions a query of DuckDB calls; after AS, a name before a parenthesis is that of a table."""
    tokens = sqlglot.tokenize(f"({sql})", dialect="duckdb")
    called = dict.fromkeys(
        token.text for before, token, after in zip(tokens, tokens[1:], tokens[2:], strict=False)
        if after.token_type is TokenType.L_PAREN and before.token_type is not TokenType.ALIAS
        and re.fullmatch(r"[a-z_][a-z0-9_]*", token.text))
    names = [word for word in called if not word.startswith(("v", "scan")) or "_" in word]
    return "made of " + ", ".join(f"`{name}`" for name in names) if names else "plain SQL"
