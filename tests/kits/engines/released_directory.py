"""A small data directory as a release leaves it: tables, and streams of every form with their results and state."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kits.engines.running_streams import SETUP, STARTED, STREAMS, begin, compared, open_streams
from kits.engines.sandboxes import TestBed

Rows = list[tuple[Any, ...]]


@dataclass(frozen=True)
class ReleasedStream:
    """A stream, where its results are, and the query that must have the same rows.

    `windows`: the first column is the start of a window, and windows that are open have no result yet.
    """

    statement: str
    result: str
    query: str
    windows: bool = True


def _window(name: str) -> ReleasedStream:
    options, query = STREAMS[name]
    return ReleasedStream(f"CREATE STREAM {name} {options} INTO {name}_out AS {query}", f"SELECT * FROM {name}_out",
                          query)


def _triggered(name: str, trigger: str, source: str, window: str, options: str = "") -> ReleasedStream:
    given = f" STREAM_OPTIONS({options})" if options else ""
    return ReleasedStream(
        f"CREATE STREAM {name} {trigger} FROM {source} PARTITION BY tbname{given} INTO {name}_out AS "
        "SELECT _twstart ts, count(*) n, sum(v) total, max(a) most FROM %%trows",
        f"SELECT * FROM {name}_out",
        f"SELECT _wstart ts, count(*) n, sum(v) total, max(a) most FROM {source} PARTITION BY tbname {window}")


RELEASED: dict[str, ReleasedStream] = {
    **{name: _window(name) for name in ("closes", "slides", "sessions", "previous", "joined", "scalars")},
    "groups": ReleasedStream(
        "CREATE STREAM groups INTO group_sums AS SELECT site, count(*) n, sum(v) total FROM m GROUP BY site "
        "HAVING count(*) > 1", "SELECT site, n, total FROM group_sums",
        "SELECT site, count(*) n, sum(v) total FROM m GROUP BY site HAVING count(*) > 1", windows=False),
    "leaders": ReleasedStream(
        "CREATE MATERIALIZED VIEW leaders AS SELECT note, sum(v) total FROM m GROUP BY note ORDER BY total DESC, note "
        "LIMIT 2", "SELECT note, total FROM leaders",
        "SELECT note, sum(v) total FROM m GROUP BY note ORDER BY total DESC, note LIMIT 2", windows=False),
    "named": ReleasedStream(
        "CREATE STREAM named INTO owner_sums AS SELECT o.name, count(*) n FROM m JOIN owners o ON m.site = o.id "
        "GROUP BY o.name", "SELECT name, n FROM owner_sums",
        "SELECT o.name, count(*) n FROM m JOIN owners o ON m.site = o.id GROUP BY o.name", windows=False),
    "tens": _triggered("tens", "INTERVAL(10s) SLIDING(10s)", "m", "INTERVAL(10s)", "IGNORE_NODATA_TRIGGER"),
    "gaps": _triggered("gaps", "SESSION(ts, 2s)", "m", "SESSION(ts, 2s)"),
    "switches": _triggered("switches", "STATE_WINDOW(ok)", "m", "STATE_WINDOW(ok)"),
    "alarms": _triggered("alarms", "EVENT_WINDOW(START WITH v > 6 END WITH v < 3)", "m",
                         "EVENT_WINDOW START WITH v > 6 END WITH v < 3"),
    "fives": _triggered("fives", "COUNT_WINDOW(5)", "calm", "COUNT_WINDOW(5)"),
}
"""By name. Those from `tens` on have a trigger of their own."""

PERIOD_S = 10
_CLOCK = (f"CREATE STREAM clock PERIOD({PERIOD_S}s) INTO clock_out AS "
          "SELECT CAST(_tlocaltime / 1000000 AS TIMESTAMP) ts, count(*) n FROM calm")

_SETUP = (
    *SETUP,
    "CREATE TABLE owners (id INT, name VARCHAR(8), PRIMARY KEY (id))",
    "INSERT INTO owners VALUES (0, 'ada') (1, 'bo') (2, 'ada')",
    "CREATE VIEW high AS SELECT tbname name, ts, v FROM m WHERE v > 7",
)

QUERIES = (
    "SELECT tbname, * FROM m ORDER BY 1, 2", "SELECT tbname, * FROM calm ORDER BY 1, 2",
    "SELECT * FROM devices ORDER BY 1", "SELECT * FROM owners ORDER BY 1", "SELECT * FROM high ORDER BY 1, 2",
    "SELECT * FROM clock_out ORDER BY 1",
    *(f"SELECT * FROM ({stream.result}) ORDER BY ALL" for stream in RELEASED.values()),
)
"""What the tables hold, results among them."""


def answers(bed: TestBed) -> dict[str, list[list[Any]]]:
    """Returns the rows of each of QUERIES, as JSON has them."""
    return {query: [list(row) for row in bed.rows(query)] for query in QUERIES}


def write(directory: Path) -> dict[str, list[list[Any]]]:
    """Makes the directory, and returns the answers of QUERIES."""
    with open_streams(directory, STARTED) as bed:
        bed.all(*_SETUP, *(stream.statement for stream in RELEASED.values()), _CLOCK)
        begin(bed)
        return answers(bed)


def differences(bed: TestBed) -> dict[str, tuple[Rows, Rows]]:
    """Returns, by the name of a stream, what it has and what it should have, where these differ or there is nothing."""
    wrong = {}
    for name, stream in RELEASED.items():
        if stream.windows:
            found, wanted = compared(bed, stream.result, stream.query)
        else:
            found, wanted = (sorted(bed.rows(query), key=repr) for query in (stream.result, stream.query))
        if found != wanted or not found:
            wrong[name] = found, wanted
    return wrong
