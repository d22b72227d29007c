"""Pseudo columns: what a query knows of its windows, its time range and the tables of its rows."""

from __future__ import annotations

from penstock.planner.duckdb_sql.duckdb_tree import Tree, fragment
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.functions.spec import FunctionSpec, PseudoColumn, always, check_call
from penstock.sql.types import BIGINT, BOOL, VARCHAR, DataType, Precision, timestamp

#: The last instant there can be: as far away is what has no bound.
FAR = 2**63 - 1


def _pseudo(
    name: str, result: DataType, pseudo: PseudoColumn, summary: str, example: str, *, in_stream: bool = True,
    only_force: bool = False
) -> FunctionSpec:
    return FunctionSpec(name, "pseudo", (), always(result), summary, in_stream, only_force, example=example,
                        pseudo=pseudo)


def _instant(value: int) -> Tree:
    return fragment(":instant::BIGINT", instant=value)


_INTERP = " FROM m RANGE('2024-01-01 00:00:30') FILL(LINEAR)"
_WINDOW = ", count(*) FROM m INTERVAL(2m)"
_ROW = " FROM m WHERE v = 3"

FUNCTIONS = (
    _pseudo("_wstart", timestamp(), PseudoColumn("window", lambda start, _: start), "Where the window starts.",
            f"_wstart{_WINDOW}"),
    _pseudo("_wend", timestamp(), PseudoColumn("window", lambda _, end: end), "Where the window ends.",
            f"_wend{_WINDOW}"),
    _pseudo("_wduration", BIGINT,
            PseudoColumn("window", lambda start, end: fragment("(:till - :since)", till=end, since=start)),
            "The window's length in units of the database's precision.", f"_wduration{_WINDOW}"),
    _pseudo("_qstart", timestamp(), PseudoColumn("range", lambda first, _: _instant(first)),
            "The lower bound of the query's time range.", "_qstart FROM m WHERE ts >= '2024-01-01 00:03:00'",
            in_stream=False),
    _pseudo("_qend", timestamp(), PseudoColumn("range", lambda _, last: _instant(last)),
            "The upper bound of the query's time range.", "_qend FROM m WHERE ts <= '2024-01-01 00:00:30'",
            in_stream=False),
    _pseudo("_qduration", BIGINT, PseudoColumn("range", lambda first, last: _instant(min(last - first, FAR))),
            "The length of the query's time range.",
            "_qduration FROM m WHERE ts BETWEEN '2024-01-01' AND '2024-01-01 00:00:30'", in_stream=False),
    _pseudo("_rowts", timestamp(), PseudoColumn("row", lambda time: time), "The row's primary timestamp.",
            f"_rowts{_ROW}"),
    _pseudo("_c0", timestamp(), PseudoColumn("row", lambda time: time), "The same as _rowts.", f"_c0{_ROW}"),
    _pseudo("_irowts", timestamp(), PseudoColumn("instant", lambda at, *_: at), "The time of an INTERP row.",
            f"_irowts, interp(v){_INTERP}", only_force=True),
    _pseudo("_isfilled", BOOL, PseudoColumn("instant", lambda _, filled, __: filled),
            "Whether an INTERP row was interpolated.", f"_isfilled, interp(v){_INTERP}", only_force=True),
    _pseudo("_irowts_origin", timestamp(), PseudoColumn("instant", lambda *known: known[2]),
            "The time of the row that an INTERP value was taken from.",
            "_irowts_origin, interp(v) FROM m RANGE('2024-01-01 00:00:30') FILL(PREV)", in_stream=False),
    _pseudo("tbname", DataType(VARCHAR.kind, 192), PseudoColumn("table", lambda name: name),
            "The name of the row's table.", f"tbname{_ROW}"),
)
_BY_NAME = {spec.name: spec for spec in FUNCTIONS}


def names_of(of: str) -> tuple[str, ...]:
    """Returns the pseudo columns that tell of rows, windows, ...: see `PseudoColumn`."""
    return tuple(spec.name for spec in FUNCTIONS if spec.pseudo is not None and spec.pseudo.of == of)


def pseudo_column(name: str, precision: Precision, *known: Tree | int) -> SqlExpr:
    """Returns a pseudo column, given what its value is made of: see `PseudoColumn`."""
    spec = _BY_NAME[name]
    assert spec.pseudo is not None
    return SqlExpr(spec.pseudo.value(*known), check_call(spec, (), precision=precision))
