"""Pseudo columns: what a query knows of its windows, its time range and the tables of its rows."""

from __future__ import annotations

from penstock.planner.functions.spec import FunctionSpec, always
from penstock.sql.types import BIGINT, BOOL, VARCHAR, DataType, timestamp


def _pseudo(
    name: str, result: DataType, summary: str, example: str, *, in_stream: bool = True, only_force: bool = False
) -> FunctionSpec:
    return FunctionSpec(name, "pseudo", (), always(result), summary, in_stream, only_force, example=example)


_INTERP = " FROM m RANGE('2024-01-01 00:00:30') FILL(LINEAR)"
_WINDOW = ", count(*) FROM m INTERVAL(2m)"
_ROW = " FROM m WHERE v = 3"

FUNCTIONS = (
    _pseudo("_wstart", timestamp(), "Where the window starts.", f"_wstart{_WINDOW}"),
    _pseudo("_wend", timestamp(), "Where the window ends.", f"_wend{_WINDOW}"),
    _pseudo("_wduration", BIGINT, "The window's length in units of the database's precision.", f"_wduration{_WINDOW}"),
    _pseudo("_qstart", timestamp(), "The lower bound of the query's time range.",
            "_qstart FROM m WHERE ts >= '2024-01-01 00:03:00'", in_stream=False),
    _pseudo("_qend", timestamp(), "The upper bound of the query's time range.",
            "_qend FROM m WHERE ts <= '2024-01-01 00:00:30'", in_stream=False),
    _pseudo("_qduration", BIGINT, "The length of the query's time range.",
            "_qduration FROM m WHERE ts BETWEEN '2024-01-01' AND '2024-01-01 00:00:30'", in_stream=False),
    _pseudo("_rowts", timestamp(), "The row's primary timestamp.", f"_rowts{_ROW}"),
    _pseudo("_c0", timestamp(), "The same as _rowts.", f"_c0{_ROW}"),
    _pseudo("_irowts", timestamp(), "The time of an INTERP row.", f"_irowts, interp(v){_INTERP}", only_force=True),
    _pseudo("_isfilled", BOOL, "Whether an INTERP row was interpolated.", f"_isfilled, interp(v){_INTERP}",
            only_force=True),
    _pseudo("_irowts_origin", timestamp(), "The time of the row that an INTERP value was taken from.",
            "_irowts_origin, interp(v) FROM m RANGE('2024-01-01 00:00:30') FILL(PREV)", in_stream=False),
    _pseudo("tbname", DataType(VARCHAR.kind, 192), "The name of the row's table.", f"tbname{_ROW}"),
)
