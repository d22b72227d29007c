"""The function table: names, argument rules, result types, and what streams may call."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.basics.query_harness import Harness

from penstock import planner
from penstock.common.errors import InvalidStatementError, NotFoundError, Position
from penstock.planner.functions.elsewhere import EXAMPLES
from penstock.planner.functions.table import FUNCTIONS, check_call, lookup, require, suggest
from penstock.sql.tree.expression_nodes import PSEUDO_COLUMNS
from penstock.sql.tree.statements import Duration
from penstock.sql.types import BIGINT, BOOL, DOUBLE, INT, UBIGINT, VARCHAR, DataType, Kind, timestamp

FLOAT = DataType(Kind.FLOAT)
NOT_IN_STREAMS = {
    "leastsquares", "percentile", "top", "bottom", "derivative", "irate", "histogram", "diff", "statecount",
    "stateduration", "csum", "mavg", "sample", "tail", "unique", "mode", "corr", "group_concat", "lag", "lead",
    "fill_forward", "grouping", "grouping_id", "unnest", "range", "generate_series", "bitstring",
}
ONLY_FORCED = {"elapsed", "twa", "interp"}


PLANNER = Path(planner.__file__).parent
#: Pseudo columns that are columns of rows, too.
COLUMNS = {"tbname", "_wstart", "_wend"}
#: Names of functions outside of their table, by file, with the reason.
NAMED: dict[str, tuple[set[str], str]] = {
    "bind/expressions.py": ({"trim", "mode", "concat"}, "TRIM has words of its own, such as the mode; || is concat"),
    "bind/grouping.py": ({"grouping", "lag", "lead"}, "DuckDB's functions, for keys, and rows beside a window"),
    "bind/join_conditions.py": ({"timetruncate"}, "the form of a condition that TDengine knows"),
    "bind/row_functions.py": ({"range", "generate_series", "unnest"}, "functions that FROM may call"),
    "logical/operators.py": ({"range", "generate_series", "unnest"}, "functions that FROM may call"),
    "lower/duckdb/query_sql.py": ({"unnest"}, "the items of a list, in the SELECT list of a query that FROM reads"),
    "bind/scopes.py": ({"range"}, "what a pseudo column tells of"),
    "bind/select_list.py": ({"replace"}, "a clause of *"),
    "duckdb_sql/duckdb_select_parts.py": ({"replace"}, "a clause of DuckDB's *"),
    "duckdb_sql/interval_windows.py": ({"first", "last"}, "holes of a template"),
    "streams/stream_forms.py": ({"_c0", "_rowts", "_wduration", "count", "first", "range"},
                                "what one form of streams has other words for than the other"),
    "streams/stream_calculation.py": ({"_c0", "now", "today"},
                                      "the time of the table of a trigger, whatever it is called; what asks for now"),
    "bind/binder.py": ({"first", "last"}, "bounds of times"),
    "bind/given_instants.py": ({"first", "last"}, "bounds of times"),
    "query/given_plan.py": ({"first"}, "bounds of times"),
    "logical/explain.py": ({"mode", "count", "timezone"}, "words of EXPLAIN"),
    "lower/column_certainty.py": ({"ceil", "floor", "round", "sign", "trunc"}, "DuckDB's functions that jump"),
    "lower/duckdb/group_sql.py": ({"min", "max"}, "DuckDB's functions, for the bounds of windows"),
    "lower/duckdb/window_sql.py": ({"min", "max"}, "DuckDB's functions, for the bounds of windows"),
    "lower/kernels/kernel_planner.py": ({"count", "sum", "min", "max", "avg", "var_pop", "sqrt", "greatest",
                                         "coalesce", "nullif", "try"},
                                        "DuckDB's functions, which kernels compute, too"),
    "query/counted_rows.py": ({"count", "first", "last", "last_row", "max", "min", "spread"},
                              "what the number of rows and their first and last times answer"),
    "query/query_context.py": ({"_irowts"}, "the pseudo columns that are a time line"),
    "lower/row_marks.py": ({"count"}, "a kind of windows"),
    "streams/stream_refresh.py": ({"timezone", "_wduration"}, "an option of streams; how sessions tell of their end"),
    "streams/result_key.py": ({"unnest"}, "what gives a group several rows"),
    "streams/stream_force.py": ({"now", "today", "timetruncate", "_irowts", "last"},
                                "what the clock says, as expressions of the statement"),
    "streams/stream_scopes.py": ({"first"}, "what the state of a window is taken with"),
    "streams/window_values.py": ({"count", "sum", "avg", "min", "max", "spread", "first", "last", "_wduration"},
                                 "aggregates with a small state, of which windows and queries give equal values"),
    "task_plans/kernel_spec.py": ({"count", "sum", "min", "max"}, "what kernels compute"),
    "task_plans/kernel_text.py": ({"greatest", "least"}, "words of EXPLAIN"),
    "task_plans/stream_plan.py": ({"count"}, "a kind of windows"),
}


def named_functions(path: Path) -> Iterator[str]:
    """Yields the literals of a file that are names of functions; a call of DuckDB's function is none."""
    tree = ast.parse(path.read_text())
    duckdb = {id(node.args[0]) for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args
              and isinstance(node.func, ast.Name) and node.func.id in ("call", "ignoring_nulls")}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value in FUNCTIONS and node.value not in COLUMNS and (
                id(node) not in duckdb):
            yield str(node.value)


def test_functions_are_named_in_their_table_alone() -> None:
    """What is special about a function is a field of its record: to add one, or to change it, takes one file."""
    files = {str(path.relative_to(PLANNER)): set(named_functions(path)) for path in PLANNER.rglob("*.py")
             if path.parent.name != "functions"}
    assert {file: names for file, names in files.items() if names} == {
        file: names for file, (names, _) in NAMED.items()}


def test_functions_that_give_rows_say_how() -> None:
    """Those along the time line and those that pick rows are computed by their records; so are pseudo columns."""
    for name, spec in FUNCTIONS.items():
        assert (spec.along is not None) == (spec.category == "timeseries"), name
        assert (spec.pseudo is not None) == (spec.category == "pseudo"), name
        ways = (spec.aggregate, spec.by_stretches, spec.picks)
        if spec.category in ("aggregate", "selection") and not (
                spec.instants or spec.of_call or spec.of_keys):
            assert sum(way is not None for way in ways) == 1, name


def test_every_scalar_function_says_what_duckdb_computes() -> None:
    """No other function does, and each has an example."""
    for name, spec in FUNCTIONS.items():
        assert (spec.scalar is not None) == (spec.category == "scalar"), name
        assert spec.category != "scalar" or spec.name in spec.example, name


def test_every_aggregate_can_be_computed() -> None:
    """What streams may call without being run by the clock splits; what takes a row is computed per group."""
    for spec in FUNCTIONS.values():
        if spec.category in ("aggregate", "selection") and spec.in_stream and not spec.only_force_window_close:
            assert spec.split is not None, spec.name
        assert spec.selects is None or spec.aggregate is not None, spec.name


def test_pseudo_columns_are_those_of_the_dialect() -> None:
    """Parser and table know the same pseudo columns."""
    assert {name for name, spec in FUNCTIONS.items() if spec.category == "pseudo"} == PSEUDO_COLUMNS


def test_every_function_is_documented() -> None:
    """Each entry has a one-sentence summary and a readable signature."""
    for name, spec in FUNCTIONS.items():
        assert spec.summary.endswith("."), name
        assert spec.signature.startswith(name)
        optional = [argument.optional for argument in spec.arguments]
        assert optional == sorted(optional), f"{name}: optional arguments come last"


def test_stream_rules() -> None:
    """Streams refuse the functions that need the whole history, and some need FORCE_WINDOW_CLOSE."""
    refused = {name for name, spec in FUNCTIONS.items() if not spec.in_stream and spec.category != "pseudo"}
    assert refused - {"cols"} == NOT_IN_STREAMS
    forced = {name for name, spec in FUNCTIONS.items() if spec.only_force_window_close and spec.category != "pseudo"}
    assert forced == ONLY_FORCED


def test_lookup_ignores_case_and_suggests() -> None:
    """Names are case-insensitive; unknown ones get the nearest name."""
    assert lookup("AvG") is FUNCTIONS["avg"]
    assert lookup("nosuch") is None
    assert suggest("substrng") == "did you mean substring()?"
    assert suggest("qqqqqqqq") is suggest("medium_of_all") is None
    assert suggest("first_value") == "it needs OVER: write first_value(...) OVER (ORDER BY ...)"
    with pytest.raises(NotFoundError, match="did you mean count") as caught:
        require("coutn", Position(1, 8, "coutn"))
    assert caught.value.position == Position(1, 8, "coutn")
    with pytest.raises(NotFoundError):
        require("_wstart")


@pytest.mark.parametrize("name", EXAMPLES)
def test_functions_of_other_systems_lead_to_what_is_written_here(name: str) -> None:
    """Each is missing here, and the hint is a query's list that the planner takes."""
    example = EXAMPLES[name]
    harness = Harness()
    harness.create("m", {"v": DOUBLE})
    with pytest.raises(NotFoundError) as caught:
        harness.plan(f"SELECT {name.upper()}(v) FROM m")
    assert caught.value.hint == f"write, for example, {example}"
    assert harness.plan(f"SELECT {example}" if " FROM m" in example else f"SELECT {example} FROM m").columns


@pytest.mark.parametrize(("name", "types", "constants", "want"), [
    ("count", [VARCHAR], [], BIGINT), ("sum", [INT], [], BIGINT), ("sum", [UBIGINT], [], UBIGINT),
    ("sum", [FLOAT], [], DOUBLE), ("avg", [INT], [], DOUBLE), ("min", [FLOAT], [], FLOAT),
    ("max", [VARCHAR], [], VARCHAR), ("last", [BOOL], [], BOOL), ("percentile", [INT, BIGINT], [None, 50], DOUBLE),
    ("percentile", [INT, BIGINT, BIGINT], [None, 5, 50], DataType(Kind.VARCHAR, 512)),
    ("elapsed", [timestamp("us"), BIGINT], [None, Duration(1, "s")], DOUBLE), ("diff", [FLOAT], [], DOUBLE),
    ("diff", [INT], [], BIGINT), ("top", [INT, BIGINT], [None, 3], INT), ("now", [], [], timestamp("us")),
])
def test_result_types(name: str, types: list[DataType], constants: list[object], want: DataType) -> None:
    """The table's rules give the result type; times have the database's precision."""
    assert check_call(FUNCTIONS[name], types, constants, precision="us") == want


@pytest.mark.parametrize(("name", "types", "constants", "code"), [
    ("sum", [], [], 0x2801), ("sum", [INT, INT], [], 0x2801), ("sum", [VARCHAR], [], 0x2802),
    ("sum", [BOOL], [], 0x2802),
    ("sum", [timestamp()], [], 0x2802), ("max", [BOOL], [], 0x2802), ("top", [INT, BIGINT], [None, 101], 0x2803),
    ("top", [INT, BIGINT], [None, 0], 0x2803), ("top", [VARCHAR, BIGINT], [None, 2], 0x2802),
    ("top", [INT, BIGINT], [None, None], 0x2802), ("mavg", [INT, BIGINT], [None, 0], 0x2803),
    ("statecount", [INT, VARCHAR, BIGINT], [None, "AT", 2], 0x2803), ("percentile", [INT, BIGINT], [None, 101], 0x2803),
    ("percentile", [INT, *[BIGINT] * 11], [None, *[5] * 11], 0x2801), ("elapsed", [INT], [], 0x2802),
    ("apercentile", [INT, BIGINT, VARCHAR], [None, 5, "best"], 0x2803),
    ("tail", [INT, BIGINT, BIGINT], [None, 5, 101], 0x2803),
    ("derivative", [INT, DOUBLE, BIGINT], [None, 5.5, 1], 0x2802), ("sample", [INT, BIGINT], [None, 1001], 0x2803),
])
def test_wrong_calls_are_refused_with_code_and_hint(
    name: str, types: list[DataType], constants: list[object], code: int,
) -> None:
    """Count, type and value of arguments have their own error codes; the hint shows the signature."""
    with pytest.raises(InvalidStatementError) as caught:
        check_call(FUNCTIONS[name], types, constants, position=Position(1, 1, name))
    assert caught.value.code == code
    assert caught.value.hint is not None
    assert name in caught.value.hint
    assert caught.value.position == Position(1, 1, name)


def test_operator_names_of_statecount_ignore_case() -> None:
    """'GT' and 'gt' are the same."""
    assert check_call(FUNCTIONS["statecount"], [INT, VARCHAR, BIGINT], [None, "GT", 2]) == BIGINT
