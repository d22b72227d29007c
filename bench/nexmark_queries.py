"""The 23 queries of NEXMark in Penstock's SQL, each with the query of DuckDB over the same rows that says its answer.

Where both are the same text, it stands there once. Numbers, texts and ties are as NEXMark's SQL for Flink has them, but
for what that leaves open: which of several rows is first, they say by their times, which are different ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Question:
    """A query of NEXMark. `columns`: those of the result with its KEY, where the query doesn't say it.

    `options`: of CREATE STREAM, for what a materialized view is not. `duckdb`: the query where it is another text; its
    tables have `arrived` besides, when a row came.
    """

    title: str
    sql: str
    duckdb: str = ""
    columns: str = ""
    options: str = ""

    def stream(self, name: str) -> str:
        """Returns the statement that makes the stream, whose results are in a table of its name."""
        columns = f" ({self.columns})" if self.columns else ""
        if self.options:
            return f"CREATE STREAM {name} {self.options} INTO {name}{columns} AS {self.sql}"
        return f"CREATE MATERIALIZED VIEW {name}{columns} AS {self.sql}"

    @property
    def answer(self) -> str:
        """DuckDB's query."""
        return self.duckdb or self.sql


_EURO = "0.908 * price"
_WINNING = """
    SELECT {columns} FROM auction a JOIN bid b ON a.id = b.auction AND b.ts BETWEEN a.ts AND a.expires
    QUALIFY row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.ts) = 1"""
_RANKS = ("price < 10000", "price >= 10000 AND price < 1000000", "price >= 1000000")


def _by_rank(call: str, name: str) -> str:
    return ",\n    ".join((f"{call} AS total_{name}", *(
        f"{call} FILTER (WHERE {rank}) AS rank{number}_{name}" for number, rank in enumerate(_RANKS, 1))))


_COUNTS = ",\n    ".join((
    _by_rank("count(*)", "bids"), _by_rank("count(DISTINCT bidder)", "bidders"),
    _by_rank("count(DISTINCT auction)", "auctions")))


def _daily(select: str, group_by: str) -> tuple[str, str]:
    """Returns both texts of a query of days, and of the minutes of day if `select` has them."""
    day, minute = ("to_char(ts, 'yyyy-mm-dd')", "strftime(ts, '%Y-%m-%d')"), (
        "to_char(ts, 'hh24:mi')", "strftime(ts, '%H:%M')")
    ours, theirs = (f"SELECT {select.format(day=day[side], minute=minute[side])} FROM bid{group_by}" for side in (0, 1))
    return ours, theirs


QUESTIONS: Mapping[int, Question] = {
    0: Question("pass through", "SELECT ts, auction, bidder, price, extra FROM bid"),
    1: Question("currency conversion", f"SELECT ts, auction, bidder, {_EURO} AS price, extra FROM bid"),
    2: Question("selection", "SELECT ts, auction, price FROM bid WHERE auction % 123 = 0"),
    3: Question("local item suggestion", """
SELECT a.ts, p.name, p.city, p.state, a.id FROM auction a JOIN person p ON a.seller = p.id
WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')"""),
    4: Question("average price for a category", """
SELECT category, avg(final) AS final FROM (
    SELECT a.id, a.category, max(b.price) AS final
    FROM auction a JOIN bid b ON a.id = b.auction AND b.ts BETWEEN a.ts AND a.expires
    GROUP BY a.id, a.category)
GROUP BY category"""),
    5: Question("hot items", """
WITH counts AS (
    SELECT _wstart AS start, auction, count(*) AS bids FROM bid PARTITION BY auction INTERVAL(10s) SLIDING(2s))
SELECT start, auction, bids FROM counts QUALIFY bids = max(bids) OVER (PARTITION BY start)""", """
WITH counts AS (
    SELECT time_bucket(INTERVAL 2 SECONDS, ts) - step * INTERVAL 2 SECONDS AS start, auction, count(*) AS bids
    FROM bid, (SELECT unnest(range(5)) AS step) GROUP BY ALL)
SELECT start, auction, bids FROM counts QUALIFY bids = max(bids) OVER (PARTITION BY start)""",
                "start PRIMARY KEY, auction PRIMARY KEY, bids"),
    6: Question("average selling price by seller", f"""
SELECT ts, seller, avg(price) OVER (PARTITION BY seller ORDER BY ts ROWS BETWEEN 10 PRECEDING AND CURRENT ROW) AS price
FROM ({_WINNING.format(columns='b.ts, a.seller, b.price')})"""),
    7: Question("highest bid", """
SELECT b.ts, b.auction, b.price, b.bidder, b.extra FROM bid b JOIN (
    SELECT _wstart AS start, max(price) AS highest FROM bid INTERVAL(10s)) w
    ON b.price = w.highest AND b.ts >= w.start AND b.ts < w.start + 10s""", """
SELECT ts, auction, price, bidder, extra FROM bid
QUALIFY price = max(price) OVER (PARTITION BY time_bucket(INTERVAL 10 SECONDS, ts))"""),
    8: Question("monitor new users", """
SELECT p.start, p.id, p.name
FROM (SELECT _wstart AS start, id, name, count(*) AS people FROM person PARTITION BY id, name INTERVAL(10s)) p
JOIN (SELECT _wstart AS start, seller, count(*) AS auctions FROM auction PARTITION BY seller INTERVAL(10s)) a
    ON p.id = a.seller AND p.start = a.start""", """
SELECT DISTINCT time_bucket(INTERVAL 10 SECONDS, p.ts) AS start, p.id, p.name FROM person p JOIN auction a
    ON p.id = a.seller AND time_bucket(INTERVAL 10 SECONDS, p.ts) = time_bucket(INTERVAL 10 SECONDS, a.ts)""",
                "start PRIMARY KEY, id PRIMARY KEY, name"),
    9: Question("winning bids", _WINNING.format(
        columns="a.ts, a.id, a.item_name, a.description, a.initial_bid, a.reserve, a.expires, a.seller, a.category,\n"
                "        a.extra, b.auction, b.bidder, b.price, b.ts AS bid_ts, b.extra AS bid_extra")),
    10: Question("log to files, by day and minute",
                 *_daily("ts, auction, bidder, price, extra, {day} AS day, {minute} AS minute", "")),
    11: Question("user sessions",
                 "SELECT _wstart AS start, bidder, count(*) AS bids, _wend + 10s AS end FROM bid PARTITION BY bidder "
                 "SESSION(ts, 10s)", """
SELECT min(ts) AS start, bidder, count(*) AS bids, max(ts) + INTERVAL 10 SECONDS AS "end" FROM (
    SELECT *, sum(CASE WHEN ts - before <= INTERVAL 10 SECONDS THEN 0 ELSE 1 END)
        OVER (PARTITION BY bidder ORDER BY ts) AS n
    FROM (SELECT *, lag(ts) OVER (PARTITION BY bidder ORDER BY ts) AS before FROM bid))
GROUP BY bidder, n"""),
    12: Question("windows by time of arrival",
                 "SELECT _wstart AS start, bidder, count(*) AS bids FROM bid PARTITION BY bidder INTERVAL(10s)", """
SELECT time_bucket(INTERVAL 10 SECONDS, arrived) AS start, bidder, count(*) AS bids FROM bid GROUP BY ALL""",
                 options="TIME INGESTION TRIGGER AT_ONCE"),
    13: Question("join with a side input",
                 "SELECT b.ts, b.auction, b.bidder, b.price, s.value FROM bid b JOIN side_input s "
                 "ON b.auction % 10000 = s.key", options="TRIGGER AT_ONCE"),
    14: Question("calculation", f"""
SELECT ts, auction, bidder, {_EURO} AS price,
    CASE WHEN hour(ts) BETWEEN 8 AND 18 THEN 'dayTime' WHEN hour(ts) <= 6 OR hour(ts) >= 20 THEN 'nightTime'
        ELSE 'otherTime' END AS bid_time,
    extra, char_length(extra) - char_length(replace(extra, 'c', '')) AS c_counts
FROM bid WHERE {_EURO} > 1000000 AND {_EURO} < 50000000"""),
    15: Question("bids of a day", *_daily("{day} AS day,\n    " + _COUNTS, "\nGROUP BY day")),
    16: Question("bids of a channel and day", *_daily(
        "channel, {day} AS day, max({minute}) AS minute,\n    " + _COUNTS, "\nGROUP BY channel, day")),
    17: Question("bids of an auction and day", *_daily(
        "auction, {day} AS day,\n    " + _by_rank("count(*)", "bids") +
        ",\n    min(price) AS min_price, max(price) AS max_price, avg(price) AS avg_price, sum(price) AS sum_price",
        "\nGROUP BY auction, day")),
    18: Question("last bid of a bidder in an auction", """
SELECT ts, auction, bidder, price, channel, url, extra FROM bid
QUALIFY row_number() OVER (PARTITION BY bidder, auction ORDER BY ts DESC) = 1"""),
    19: Question("ten highest bids of an auction", """
SELECT *, row_number() OVER (PARTITION BY auction ORDER BY price DESC, ts) AS place FROM bid QUALIFY place <= 10""", """
SELECT * EXCLUDE (arrived), row_number() OVER (PARTITION BY auction ORDER BY price DESC, ts) AS place FROM bid
QUALIFY place <= 10"""),
    20: Question("bids with their auctions", """
SELECT b.ts, b.auction, b.bidder, b.price, b.channel, b.url, b.extra, a.item_name, a.description, a.initial_bid,
    a.reserve, a.ts AS auction_ts, a.expires, a.seller, a.category, a.extra AS auction_extra
FROM bid b JOIN auction a ON b.auction = a.id WHERE a.category = 10"""),
    21: Question("channel ids", """
SELECT ts, auction, bidder, price, channel,
    CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3'
        ELSE regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) END AS channel_id
FROM bid
WHERE regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) <> ''
    OR lower(channel) IN ('apple', 'google', 'facebook', 'baidu')"""),
    22: Question("folders of addresses", """
SELECT ts, auction, bidder, price, channel, split_part(url, '/', 4) AS dir1, split_part(url, '/', 5) AS dir2,
    split_part(url, '/', 6) AS dir3
FROM bid"""),
}
