"""Windows that rows define: SESSION, STATE_WINDOW, EVENT_WINDOW and COUNT_WINDOW, as queries over ordered rows.

Each function returns SQL that yields the rows of `rows` with a column `#wid`; rows of the same partition and `#wid`
form a window, rows in no window are left out. Sizes of windows and their aggregates are not decided here.
"""

from __future__ import annotations

from collections.abc import Sequence

WINDOW_ID = '"#wid"'
STATE = '"#state"'


def _over(keys: Sequence[str], order: Sequence[str], frame: str = "") -> str:
    partition = f"PARTITION BY {', '.join(keys)} " if keys else ""
    return f"OVER ({partition}ORDER BY {', '.join(order)}{frame})"


# Rows of equal order count one by one: the default frame would take them together.
_SO_FAR = " ROWS UNBOUNDED PRECEDING"


def session_sql(rows: str, keys: Sequence[str], order: Sequence[str], gap: int) -> str:
    """A row opens a new session if it is more than `gap` units after the one before it."""
    ts = order[0]
    return (
        f"SELECT * EXCLUDE (\"#new\"), sum(\"#new\") {_over(keys, order, _SO_FAR)} AS {WINDOW_ID} FROM ("
        f"SELECT *, CASE WHEN {ts} - lag({ts}) {_over(keys, order)} <= {gap} THEN 0 ELSE 1 END AS \"#new\" FROM {rows})"
    )


def state_sql(rows: str, keys: Sequence[str], order: Sequence[str], state: str) -> str:
    """A row opens a new window if its state differs from the one before it; rows without state are in none.

    The rows keep their state as `#state`.
    """
    return (
        f"SELECT * EXCLUDE (\"#new\"), sum(\"#new\") {_over(keys, order, _SO_FAR)} AS {WINDOW_ID} FROM ("
        f"SELECT *, CASE WHEN \"#state\" = lag(\"#state\") {_over(keys, order)} THEN 0 ELSE 1 END AS \"#new\" FROM ("
        f"SELECT *, {state} AS \"#state\" FROM {rows}) WHERE \"#state\" IS NOT NULL)"
    )


def event_sql(rows: str, keys: Sequence[str], order: Sequence[str], start: str, end: str) -> str:
    """A window goes from the first row that starts one to the next row that ends it, which may be the same row.

    After any row that fulfils the end condition no window is open. So a row is in a window if a start came after the
    newest end before the row, and if an end follows; the number of ends before it tells windows apart.
    """
    partition = f"PARTITION BY {', '.join(keys)}" if keys else ""
    marked = (f"SELECT *, coalesce({start}, false)::TINYINT AS \"#start\", coalesce({end}, false)::TINYINT AS \"#end\" "
              f"FROM {rows}")
    # Running sums over all rows so far are what DuckDB computes fastest; frames that end before the row are not.
    line = _over(keys, order)
    stepped = f"SELECT *, row_number() {line} AS \"#row\", lag(\"#end\", 1, 0) {line} AS \"#after\" FROM ({marked})"
    so_far = _over(keys, ['"#row"'], _SO_FAR)
    numbered = (
        f"SELECT *, sum(\"#after\") {so_far} AS {WINDOW_ID}, max(\"#row\" * \"#start\") {so_far} AS \"#started\", "
        f"max(\"#row\" * \"#after\") {so_far} AS \"#began\", sum(\"#end\") OVER ({partition}) AS \"#ends\" "
        f"FROM ({stepped})")
    helpers = ", ".join(f'"#{name}"' for name in ("row", "start", "end", "after", "started", "began", "ends"))
    return (f"SELECT * EXCLUDE ({helpers}) FROM ({numbered}) "
            f"WHERE \"#started\" > 0 AND \"#started\" >= \"#began\" AND {WINDOW_ID} < \"#ends\"")


def count_sql(
    rows: str, keys: Sequence[str], order: Sequence[str], count: int, sliding: int, columns: Sequence[str]
) -> str:
    """Windows of `count` rows, a new one at every `sliding`-th row; the last ones may have fewer.

    With `columns`, only rows in which one of them is not NULL count and belong to windows.
    """
    kept = rows
    if columns:
        kept = f"(SELECT * FROM {rows} WHERE {' OR '.join(f'{column} IS NOT NULL' for column in columns)})"
    numbered = f"SELECT *, row_number() {_over(keys, order)} - 1 AS \"#row\" FROM {kept}"
    last = f"(\"#row\" // {sliding})"
    if sliding == count:
        return f"SELECT * EXCLUDE (\"#row\"), {last} AS {WINDOW_ID} FROM ({numbered})"
    # The oldest window that still reaches this row starts less than `count` rows before it.
    first = f"greatest(0, (\"#row\" - {count} + {sliding}) // {sliding})"
    return f"SELECT * EXCLUDE (\"#row\"), unnest(range({first}, {last} + 1)) AS {WINDOW_ID} FROM ({numbered})"
