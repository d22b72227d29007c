"""The queries that are measured: as a stream, and as the batch query of DuckDB that says what the answer must be.

A batch query reads the relation `source` (tbname, tag, ts in ms as BIGINT, the columns) and gives the result's columns
and `ended`: the time at which the watermark must have arrived for the window to be closed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from bench.rows import Shape, Source

Trigger = Literal["WINDOW_CLOSE", "AT_ONCE"]
WATERMARK_MS = 5000


@dataclass(frozen=True, slots=True)
class Query:
    """One query in both forms. `keys` name a result row; `values` are compared, numbers within a relative 1e-6.

    `select`: the stream's SELECT. `tags`: the result's tag, which is also its partition; "": a number of the group is,
    and the partition is a column. `width_ms`: of its windows,
    where a row lies in exactly one of them; 0 otherwise. `takes_late`: else IGNORE EXPIRED must be 1.
    `peer_hold_ms`: peers close the window so much later: their sessions end with the gap, not with the last row.
    """

    name: str
    title: str
    select: str
    tags: str
    batch: str
    keys: tuple[str, ...]
    values: tuple[str, ...]
    source: Source = "meters"
    pauses: bool = False
    windowed: bool = True
    width_ms: int = 0
    takes_late: bool = True
    peer_hold_ms: int = 0

    def stream(self, name: str, target: str, trigger: Trigger, options: str = "") -> str:
        """Returns the CREATE STREAM statement; `options` go before INTO."""
        when = f"TRIGGER {trigger} WATERMARK {WATERMARK_MS}a " if self.windowed else ""
        expired = 0 if self.takes_late else 1
        tags = f"TAGS ({self.tags}) " if self.tags else ""
        return (f"CREATE STREAM {name} {when}IGNORE EXPIRED {expired} IGNORE UPDATE 0 {options} "
                f"INTO {target} {tags}AS {self.select}")

    def of(self, shape: Shape) -> Shape:
        """Returns the shape with the rows that this query is about."""
        return replace(shape, source=self.source, pauses=self.pauses)

    def result(self, target: str) -> str:
        """Returns the query that reads the results."""
        return f"SELECT {', '.join((*self.keys, *self.values))} FROM {target}"


def _tumbling(width_ms: int) -> str:
    return f"ts - ts % {width_ms} ts"


def _numbered(condition: str, *, keep: str = "true") -> str:
    """Returns a FROM clause of `source` with `number`: how many rows of the table up to this one fulfil `condition`."""
    return (f"(SELECT *, sum(CASE WHEN {condition} THEN 1 ELSE 0 END) OVER (PARTITION BY tbname ORDER BY ts) number "
            f"FROM (SELECT *, lag(ts) OVER w before, lag({_STATE}) OVER w state_before FROM source "
            f"WINDOW w AS (PARTITION BY tbname ORDER BY ts)) WHERE {keep})")


_STATE = "CASE WHEN voltage >= 228 THEN 1 ELSE 0 END"
_TABLE = "tn VARCHAR(16)"

Q1 = Query(
    "q1", "per table, 10 s tumbling",
    "SELECT _wstart ts, avg(current) a, max(voltage) m, count(*) c FROM meters PARTITION BY tbname tn INTERVAL(10s)",
    _TABLE,
    f"SELECT tbname tn, {_tumbling(10_000)}, avg(current) a, max(voltage) m, count(*) c, "
    "any_value(ts - ts % 10000) + 10000 ended FROM source GROUP BY 1, 2",
    ("tn", "ts"), ("a", "m", "c"), width_ms=10_000)

Q2 = Query(
    "q2", "per group tag, 1 s tumbling",
    "SELECT _wstart ts, avg(current) a, min(current) l, max(current) h, sum(voltage) s, count(*) c FROM meters "
    "PARTITION BY groupid g INTERVAL(1s)",
    "g INT",
    f"SELECT tag g, {_tumbling(1000)}, avg(current) a, min(current) l, max(current) h, sum(voltage)::BIGINT s, "
    "count(*) c, any_value(ts - ts % 1000) + 1000 ended FROM source GROUP BY 1, 2",
    ("g", "ts"), ("a", "l", "h", "s", "c"), width_ms=1000)

Q3 = Query(
    "q3", "per table, 60 s sliding by 10 s",
    "SELECT _wstart ts, avg(current) a FROM meters PARTITION BY tbname tn INTERVAL(60s) SLIDING(10s)",
    _TABLE,
    "SELECT tbname tn, ts - ts % 10000 - step * 10000 ts, avg(current) a, "
    "any_value(ts - ts % 10000 - step * 10000) + 60000 ended "
    "FROM source, (SELECT unnest(range(6)) step) GROUP BY 1, 2",
    ("tn", "ts"), ("a",))

Q4 = Query(
    "q4", "per table, session gap 5 s",
    "SELECT _wstart ts, count(*) c FROM meters PARTITION BY tbname tn SESSION(ts, 5s)",
    _TABLE,
    f"SELECT tbname tn, min(ts) ts, count(*) c, max(ts) + 1 ended FROM {_numbered('ts - before > 5000')} "
    "GROUP BY tbname, number",
    ("tn", "ts"), ("c",), pauses=True, peer_hold_ms=4999)

Q5 = Query(
    "q5", "filter and projection",
    "SELECT ts, current * voltage p, phase FROM meters WHERE voltage >= 220 PARTITION BY tbname tn",
    _TABLE,
    "SELECT tbname tn, ts, current * voltage p, phase, 0 ended FROM source WHERE voltage >= 220",
    ("tn", "ts"), ("p", "phase"), windowed=False)

YSB = Query(
    "ysb", "views per campaign, 10 s",
    "SELECT _wstart ts, count(*) c FROM ads WHERE event_type = 'view' PARTITION BY campaign g INTERVAL(10s)",
    "g INT",
    f"SELECT tag g, {_tumbling(10_000)}, count(*) c, any_value(ts - ts % 10000) + 10000 ended FROM source "
    "WHERE event_type = 'view' GROUP BY 1, 2",
    ("g", "ts"), ("c",), source="ads")

COUNT = Query(
    "count", "per table, COUNT_WINDOW(100)",
    "SELECT _wstart ts, count(*) c, max(current) m FROM meters PARTITION BY tbname tn COUNT_WINDOW(100)",
    _TABLE,
    f"SELECT tbname tn, min(ts) ts, count(*) c, max(current) m, max(ts) + 1 ended FROM {_numbered('true')} "
    "GROUP BY tbname, (number - 1) // 100 HAVING count(*) = 100",
    ("tn", "ts"), ("c", "m"), takes_late=False)

STATE = Query(
    "state", "per table, STATE_WINDOW (high voltage or not)",
    f"SELECT _wstart ts, count(*) c FROM meters PARTITION BY tbname tn STATE_WINDOW({_STATE})",
    _TABLE,
    f"SELECT tbname tn, min(ts) ts, count(*) c, max(ts) + 1 ended FROM {_numbered(f'{_STATE} <> state_before')} "
    "GROUP BY tbname, number",
    ("tn", "ts"), ("c",))

EVENT = Query(
    "event", "per table, EVENT_WINDOW (high voltage until low)",
    "SELECT _wstart ts, count(*) c FROM meters PARTITION BY tbname tn "
    "EVENT_WINDOW START WITH voltage >= 228 END WITH voltage < 214",
    _TABLE,
    # Rows between the end of one window and the start of the next belong to none: number the ends before each row.
    "SELECT tbname tn, min(ts) FILTER (started) ts, count(*) FILTER (started) c, max(ts) + 1 ended FROM ("
    "SELECT *, max(CASE WHEN voltage >= 228 THEN 1 ELSE 0 END) OVER (PARTITION BY tbname, number ORDER BY ts) = 1 "
    "started FROM (SELECT *, coalesce(sum(CASE WHEN voltage < 214 THEN 1 ELSE 0 END) OVER (PARTITION BY tbname "
    "ORDER BY ts ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) number FROM source)) "
    "GROUP BY tbname, number HAVING bool_or(started) AND bool_or(started AND voltage < 214)",
    ("tn", "ts"), ("c",))



def _accounts(name: str, title: str, width: str, width_ms: int, *, column: bool = False) -> Query:
    """`column`: the group is a column of the result instead of its tag."""
    return Query(
        name, f"per value of a column with many, {title}",
        f"SELECT _wstart ts, {'account k, ' if column else ''}count(*) c, sum(amount) s FROM accounts "
        f"PARTITION BY account{'' if column else ' k'} INTERVAL({width})",
        "" if column else "k INT",
        f"SELECT account k, {_tumbling(width_ms)}, count(*) c, sum(amount)::BIGINT s, "
        f"any_value(ts - ts % {width_ms}) + {width_ms} ended FROM source GROUP BY 1, 2",
        ("k", "ts"), ("c", "s"), source="accounts")


ACCOUNTS = _accounts("accounts", "10 s tumbling", "10s", 10_000)
ACCOUNTS_COLUMN = _accounts("accounts_column", "10 s tumbling, in a column", "10s", 10_000, column=True)
ACCOUNTS_MINUTE = _accounts("accounts_minute", "1 min tumbling", "1m", 60_000)

# Each row lies in ten windows, and nearly all windows that rows of the last 10,000 s lie in are open at the end.
OPEN = Query(
    "open", "per value of a column with many, 10,000 s sliding by 1,000 s",
    "SELECT _wstart ts, count(*) c, sum(amount) s FROM accounts PARTITION BY account k INTERVAL(10000s) SLIDING(1000s)",
    "k INT",
    "SELECT account k, ts - ts % 1000000 - step * 1000000 ts, count(*) c, sum(amount)::BIGINT s, "
    "any_value(ts - ts % 1000000 - step * 1000000) + 10000000 ended "
    "FROM source, (SELECT unnest(range(10)) step) GROUP BY 1, 2",
    ("k", "ts"), ("c", "s"), source="accounts")

QUERIES: Mapping[str, Query] = {
    query.name: query for query in (Q1, Q2, Q3, Q4, Q5, YSB, COUNT, STATE, EVENT, ACCOUNTS)}
