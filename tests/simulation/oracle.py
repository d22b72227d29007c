"""What the source may hold after a run, and what each kind of stream must have made of it: computed by plain DuckDB."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import pyarrow as pa

from simulation.seams import shared_duckdb

Key = tuple[str, int]
Row = tuple[int | None, int | None]  # k, v


class Keep(Enum):
    """Stands for the value of a column that a statement doesn't write."""

    KEEP = "keep"


KEEP = Keep.KEEP
Written = tuple[int | Keep | None, int | Keep | None]
"""What a statement says of k and v of a row."""

WINDOW = 10_000
LOST_S = 4.0  # WAL_FSYNC_PERIOD and the time between two rounds of upkeep
SOURCE = pa.schema([("tn", pa.string()), ("site", pa.int32()), ("ts", pa.int64()), ("k", pa.int32()),
                    ("v", pa.int32())])


@dataclass(frozen=True)
class StreamKind:
    """A stream and the batch answer for it. `closed_only`: only windows that have ended before the newest row count."""

    name: str
    options: str
    into: str
    query: str
    result: str
    batch: str
    closed_only: bool = False
    width: int = WINDOW


def kind(name: str, query: str, batch: str, *, into: str = "", result: str, trigger: str = "AT_ONCE",
         closed_only: bool = False, width: int = WINDOW) -> StreamKind:
    return StreamKind(name, f"TRIGGER {trigger} IGNORE EXPIRED 0 IGNORE UPDATE 0", into, query, result, batch,
                      closed_only, width)


_MS = f"(ts // {WINDOW}) * {WINDOW}"
KINDS = (
    kind("per_table", "SELECT _wstart ts, count(*) c, sum(v) s, max(v) m FROM d.m PARTITION BY tbname tn "
         "INTERVAL(10s)",
         f"SELECT tn, {_MS} w, count(*), sum(v)::BIGINT, max(v) FROM source GROUP BY ALL",
         into="TAGS (tn VARCHAR(20))", result="SELECT tn, ts, c, s, m FROM {out}"),
    kind("per_site", "SELECT _wstart ts, count(*) c, sum(v) s, min(v) m FROM d.m PARTITION BY site INTERVAL(10s)",
         f"SELECT site, {_MS} w, count(*), sum(v)::BIGINT, min(v) FROM source GROUP BY ALL",
         into="TAGS (site INT)", result="SELECT site, ts, c, s, m FROM {out}"),
    kind("closed_per_site", "SELECT _wstart ts, count(*) c, avg(v) a FROM d.m PARTITION BY site INTERVAL(10s)",
         f"SELECT site, {_MS} w, count(*), avg(v) FROM source GROUP BY ALL",
         into="TAGS (site INT)", result="SELECT site, ts, c, a FROM {out}", trigger="WINDOW_CLOSE",
         closed_only=True),
    kind("closed_all", "SELECT _wstart ts, count(*) c, sum(v) s FROM d.m INTERVAL(10s)",
         f"SELECT {_MS} w, count(*), sum(v)::BIGINT FROM source GROUP BY ALL",
         result="SELECT ts, c, s FROM {out}", trigger="WINDOW_CLOSE", closed_only=True),
    kind("overlapping", "SELECT _wstart ts, count(*) c, sum(v) s FROM d.m WHERE v > 2 INTERVAL(10s) SLIDING(5s)",
         "SELECT w * 5000 w, count(*), sum(v)::BIGINT FROM (SELECT unnest([ts // 5000, ts // 5000 - 1]) w, v "
         "FROM source WHERE v > 2) GROUP BY ALL",
         result="SELECT ts, c, s FROM {out}"),
    kind("some_per_site", "SELECT _wstart ts, count(*) c, sum(v) s, max(v) m FROM d.m WHERE k <= 2 PARTITION BY site "
         "INTERVAL(2500a)",
         "SELECT site, (ts // 2500) * 2500 w, count(*), sum(v)::BIGINT, max(v) FROM source WHERE k <= 2 GROUP BY ALL",
         into="TAGS (site INT)", result="SELECT site, ts, c, s, m FROM {out}", width=2_500),
    kind("spread", "SELECT _wstart ts, count(*) c, stddev(v) d, spread(v) p FROM d.m WHERE v <= 7 "
         "PARTITION BY tbname tn INTERVAL(1s)",
         "SELECT tn, (ts // 1000) * 1000 w, count(*), stddev_pop(v), (max(v) - min(v))::DOUBLE FROM source "
         "WHERE v <= 7 GROUP BY ALL",
         into="TAGS (tn VARCHAR(20))", result="SELECT tn, ts, c, d, p FROM {out}", width=1_000,
         trigger="AT_ONCE WATERMARK 1s"),
    kind("filtered", "SELECT ts, v * 2 AS twice, k FROM d.m WHERE k <> 1 PARTITION BY tbname tn",
         "SELECT tn, ts, v * 2, k FROM source WHERE k <> 1",
         into="TAGS (tn VARCHAR(20))", result="SELECT tn, ts, twice, k FROM {out}", width=1),
)
EXCHANGED = next(each for each in KINDS if each.name == "per_site")
"""A stream whose rows cross between vnodes, to several agg tasks."""


@dataclass
class Model:
    """What was asked of the source. A write without an answer may have happened, in part too.

    `may_lose`: a power cut may take what was acknowledged less than LOST_S before it (WAL_LEVEL 1), or before a log
    couldn't be synced, which takes no more rows until it is opened again. Results that were made of such rows may stay:
    `shaken` are the keys whose results are not compared.
    """

    may_lose: bool = False
    shaken: set[Key] = field(default_factory=set)
    sites: dict[str, int] = field(default_factory=dict)
    _maybe_sites: dict[str, list[int]] = field(default_factory=dict)
    _sure: dict[Key, Row | None] = field(default_factory=dict)
    _maybe: dict[Key, list[Row | None]] = field(default_factory=dict)
    _recent: list[tuple[float, Key, Row | None]] = field(default_factory=list)
    acknowledged: int = 0
    _unsynced_since: float | None = None

    def write(self, rows: Mapping[Key, Written | None], now: float, *, sure: bool) -> None:
        """Notes rows (None: deleted) of a statement that ended at `now`; `sure`: it was acknowledged."""
        for key, row in rows.items():
            before = self._sure.get(key)
            maybe = self._maybe.get(key, [])
            after = [merged(other, row) for other in maybe]
            if sure:
                self._recent += [(now, key, other) for other in (before, *maybe)]
                self._sure[key] = merged(before, row)
                self._maybe[key] = after if row is not None and KEEP in row else []
            else:
                self._maybe[key] = [*maybe, merged(before, row), *after]
        self.acknowledged += sure

    def retag(self, table: str, site: int, *, sure: bool) -> None:
        """Notes another site of a table; `sure`: that was acknowledged."""
        if sure:
            self.sites[table] = site
            self._maybe_sites.pop(table, None)
        else:
            self._maybe_sites.setdefault(table, []).append(site)

    def settle_sites(self, found: Mapping[str, int]) -> list[str]:
        """Takes the sites of tables as they are, and returns which of them nobody has given."""
        wrong = [f"{table} has site {site}, not {self.sites[table]}" for table, site in found.items()
                 if site not in (self.sites[table], *self._maybe_sites.get(table, []))]
        self.sites |= found
        return wrong

    def sync_failed(self, now: float) -> None:
        """Notes that a log couldn't be synced."""
        if self._unsynced_since is None:
            self._unsynced_since = now

    def logs_opened(self) -> None:
        """Notes that all logs were opened, which syncs them."""
        self._unsynced_since = None

    def cut_power(self, now: float) -> None:
        """Notes that the power was cut."""
        if self.may_lose:
            synced_until = (now if self._unsynced_since is None else self._unsynced_since) - LOST_S
            for at, key, before in self._recent:
                if at >= synced_until:
                    self._maybe.setdefault(key, []).append(before)
                    self.shaken.add(key)
            self.shaken.update(self._maybe)
        self._recent.clear()
        self._unsynced_since = None

    def touched(self) -> Iterable[Key]:
        """Returns the keys of all rows that were ever asked for."""
        return {**dict.fromkeys(self._sure), **dict.fromkeys(self._maybe)}

    def problems(self, found: dict[Key, Row]) -> list[str]:
        """Returns what is there that nobody wrote, and what is missing that was acknowledged."""
        texts = []
        for key in {**dict.fromkeys(self.touched()), **dict.fromkeys(found)}:
            allowed = [self._sure.get(key), *self._maybe.get(key, [])]
            if found.get(key) not in allowed:
                texts.append(f"source {key} is {found.get(key)}, allowed: {allowed}")
        return texts


def merged(before: Row | None, row: Written | None) -> Row | None:
    """Returns what a row is after a statement."""
    if row is None:
        return None
    k, v = (old if new is KEEP else new for old, new in zip(before or (None, None), row, strict=True))
    return k, v


def batch_answer(stream: StreamKind, model: Model, found: dict[Key, Row], newest: int) -> list[tuple[Any, ...]]:
    """Returns the rows that the stream must have written, sorted."""
    rows = [{"tn": tn, "site": model.sites[tn], "ts": ts, "k": row[0], "v": row[1]} for (tn, ts), row in found.items()]
    with shared_duckdb().cursor() as connection:
        connection.register("source", pa.Table.from_pylist(rows, schema=SOURCE))
        answer = connection.execute(stream.batch).fetchall()
    return shown(stream, answer, model, newest)


def shown(stream: StreamKind, rows: list[tuple[Any, ...]], model: Model, newest: int) -> list[tuple[Any, ...]]:
    """Returns the rows that count, sorted: without shaken ones, for WINDOW_CLOSE without the newest row's window."""
    place = 1 if stream.into else 0
    rows = [row for row in rows if not any(row[place] <= ts < row[place] + stream.width for _, ts in model.shaken)]
    if stream.closed_only:
        rows = [row for row in rows if row[place] < newest]
    return sorted((_plain(row) for row in rows), key=repr)


def _plain(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(round(value, 6) if isinstance(value, float) else value for value in row)
