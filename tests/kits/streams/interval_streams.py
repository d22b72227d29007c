"""Streams with ten-second windows over the meters, random steps, and the batch answer by DuckDB."""

from __future__ import annotations

from hypothesis import strategies as st
from kits.basics.shared_duckdb import duckdb_with
from kits.streams.stream_kit import Answer, StreamKit, millis, null_last

AGGREGATES = ("count(*) c, sum(voltage) s, avg(current) a, min(voltage) lo, max(current) hi, first(voltage) f, "
              "last(note) l, spread(voltage) sp, stddev(current) sd")
ORACLE = """
    SELECT {keys} (ts // {width}) * {width} AS start, count(*) AS c, sum(voltage)::BIGINT AS s, avg(current) AS a,
        min(voltage) AS lo, max(current) AS hi,
        arg_min(voltage, (ts, _tuid)) FILTER (voltage IS NOT NULL) AS f,
        arg_max(note, (ts, -(_tuid::HUGEINT))) FILTER (note IS NOT NULL) AS l,
        (max(voltage) - min(voltage))::DOUBLE AS sp, stddev_pop(current) AS sd
    FROM source {where} GROUP BY ALL ORDER BY ALL
"""
WIDTH = 10_000


def batch(kit: StreamKit, keys: str, where: str = "", width: int = WIDTH) -> list[Answer]:
    """The batch answer, from DuckDB over the stored rows."""
    source = kit.source()
    with duckdb_with({"source": source}) as connection:
        rows = connection.execute(ORACLE.format(keys=keys, where=where, width=width)).fetchall()
    return sorted(rows, key=lambda row: null_last(row[:2]))


def stream(kit: StreamKit, key: str | None) -> list[Answer]:
    """The stream's result in the oracle's column order."""
    rows = []
    for row in kit.rows():
        head = (row[key],) if key else ()
        rows.append((*head, millis(row["_wstart"]),
                     *(row[name] for name in ("c", "s", "a", "lo", "hi", "f", "l", "sp", "sd"))))
    return sorted(rows, key=lambda row: null_last(row[:2]))


ROW = st.tuples(
    st.integers(0, 3), st.integers(0, 60_000), st.one_of(st.none(), st.integers(-5, 5)),
    st.one_of(st.none(), st.floats(-10, 10)), st.one_of(st.none(), st.sampled_from(["x", "y", ""])),
)
WRITE = st.one_of(
    st.tuples(st.just("insert"), st.lists(ROW, min_size=1, max_size=8)),
    st.tuples(st.just("partial"), st.lists(ROW, min_size=1, max_size=3)),
    st.tuples(st.just("delete"), st.tuples(st.one_of(st.none(), st.lists(st.integers(0, 3), min_size=1, max_size=2)),
                                           st.integers(0, 60_000), st.integers(0, 30_000))),
)
STEP = st.one_of(
    WRITE,
    st.tuples(st.just("run"), st.none()),
    st.tuples(st.just("checkpoint"), st.booleans()),
    st.tuples(st.just("kill"), st.none()),
)

PARTITIONS = {
    "table": ("partition by tbname tn, site", "tn", "tbname,"),
    "tag": ("partition by site", "site", "site,"),
    "column": ("partition by note", "note", "note,"),
    "none": ("", None, ""),
}
#: What a stream of each of the partitions above writes into.
INTO = {"table": "o tags(tn varchar(20)) ", "tag": "o tags(site varchar(20)) ", "column": "o tags(note varchar(20)) ",
        "none": "o "}
