"""One example per function for the reference, over a small table `m`; `write_docs` runs them and prints the answers."""

from __future__ import annotations

from penstock.planner.functions.table import FUNCTIONS

SETUP = (
    "CREATE DATABASE docs KEEP 36500 VGROUPS 1",
    "USE docs",
    "CREATE TABLE m (ts TIMESTAMP, v INT, s VARCHAR(8))",
    "INSERT INTO m VALUES ('2024-01-01 00:00:00', 1, 'a') ('2024-01-01 00:01:00', 3, 'b') "
    "('2024-01-01 00:02:00', NULL, 'b') ('2024-01-01 00:03:00', 6, NULL)",
)

_ROW = " FROM m WHERE v = 3"
_INTERP = " FROM m RANGE('2024-01-01 00:00:30') FILL(LINEAR)"
_WINDOW = ", count(*) FROM m INTERVAL(2m)"

EXAMPLES: dict[str, str] = {
    **{spec.name: spec.example for spec in FUNCTIONS.values() if spec.example},
    # aggregates
    "count": "count(*), count(v) FROM m", "sum": "sum(v) FROM m", "avg": "avg(v) FROM m", "spread": "spread(v) FROM m",
    "stddev": "stddev(v) FROM m", "stddev_pop": "stddev_pop(v) FROM m", "var_pop": "var_pop(v) FROM m",
    "apercentile": "apercentile(v, 50) FROM m", "percentile": "percentile(v, 0, 50, 100) FROM m",
    "hyperloglog": "hyperloglog(s) FROM m", "histogram": "histogram(v, 'user_input', '[0, 2, 8]', 0) FROM m",
    "leastsquares": "leastsquares(v, 1, 1) FROM m", "elapsed": "elapsed(ts, 1s) FROM m", "twa": "twa(v) FROM m",
    "irate": "irate(v) FROM m",
    # selection
    "min": "min(v), ts FROM m", "max": "max(v), s FROM m", "first": "first(v) FROM m", "last": "last(s), ts FROM m",
    "last_row": "last_row(s) FROM m", "mode": "mode(s) FROM m", "top": "top(v, 2), ts FROM m",
    "bottom": "bottom(v, 1) FROM m", "sample": "sample(v, 1) FROM m WHERE v = 1", "tail": "tail(v, 1, 1) FROM m",
    "unique": "unique(s) FROM m", "cols": "cols(max(v), ts, s) FROM m", "interp": "interp(v)" + _INTERP,
    # along the time line
    "diff": "diff(v) FROM m", "derivative": "derivative(v, 1m, 0) FROM m", "csum": "csum(v) FROM m",
    "mavg": "mavg(v, 2) FROM m", "statecount": "statecount(v, 'GE', 2) FROM m",
    "stateduration": "stateduration(v, 'GE', 2, 1s) FROM m",
    # pseudo columns
    "_wstart": "_wstart" + _WINDOW, "_wend": "_wend" + _WINDOW, "_wduration": "_wduration" + _WINDOW,
    "_qstart": "_qstart FROM m WHERE ts >= '2024-01-01 00:03:00'",
    "_qend": "_qend FROM m WHERE ts <= '2024-01-01 00:00:30'",
    "_qduration": "_qduration FROM m WHERE ts BETWEEN '2024-01-01' AND '2024-01-01 00:00:30'",
    "_rowts": "_rowts" + _ROW, "_c0": "_c0" + _ROW, "_irowts": "_irowts, interp(v)" + _INTERP,
    "_isfilled": "_isfilled, interp(v)" + _INTERP,
    "_irowts_origin": "_irowts_origin, interp(v) FROM m RANGE('2024-01-01 00:00:30') FILL(PREV)",
    "tbname": "tbname" + _ROW,
}
