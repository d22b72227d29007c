"""How deep and how long statements may be: one bound for all, whoever calls, and no plan keeps an engine from opening.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import times
from kits.engines.embedded import Embedded
from sqlglot import exp

from penstock.common.errors import InvalidStatementError, PenstockError, SqlSyntaxError
from penstock.common.headroom import FRAMES_OF_CALLERS, with_headroom
from penstock.common.logging import MAX_TRACE, JsonFormatter, TextFormatter
from penstock.mnode.streams import stream_planning, stream_starts
from penstock.planner.duckdb_sql.duckdb_tree import fragment
from penstock.planner.lower.kernels import kernel_planner
from penstock.sql.dialect.base_parser import MAX_NESTING
from penstock.sql.dialect.parse_expression import MAX_CHAIN
from penstock.sql.dialect.parser import parse_one

TABLES = ("CREATE DATABASE d VGROUPS 1 KEEP 36500d", "USE d",
          "CREATE STABLE st (ts TIMESTAMP, i INT, s VARCHAR(16)) TAGS (g INT)",
          "INSERT INTO c1 USING st TAGS (1) VALUES (1000, 3, 'a') (2000, 4, 'b')")
ROWS = "FROM st PARTITION BY tbname"


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Embedded]:
    db = Embedded(tmp_path)
    db.all(*TABLES)
    yield db
    db.close()


def deeper(frames: int, work: Callable[[], object]) -> object:
    """Returns what `work` returns, called that many frames deeper."""
    return work() if frames <= 0 else deeper(frames - 1, work)


def at_limit(opened: str, inner: str, closed: str, less: int = 1) -> str:
    return opened * (MAX_NESTING - less) + inner + closed * (MAX_NESTING - less)


LONG = {
    "+": " + ".join(["i"] * (MAX_CHAIN // 2)), "- and +": "i" + " - i + 1" * (MAX_CHAIN // 4),
    "%": " % ".join(["i"] * 100), "&": " & ".join(["i"] * 200), "time": "ts" + " + 1s" * 100,
    "AND": " AND ".join(f"i <> {n}" for n in range(1000)), "OR": " OR ".join(f"i = {n}" for n in range(1000)),
    "CASE": "CASE i " + " ".join(f"WHEN {n} THEN {n}" for n in range(1000)) + " END",
    "IN": f"i IN ({', '.join(map(str, range(2000)))})",
}
DEEP = {
    "parentheses": at_limit("(1 + ", "i", ")"), "left": at_limit("(", "i", " + 1)"),
    "calls": at_limit("abs(", "i", ")"),
    "CASE": at_limit("CASE WHEN i = 1 THEN ", "i", " END"), "signs": "- " * (MAX_NESTING - 1) + "i",
    "NOT": "NOT " * (MAX_NESTING - 1) + "i = 1", "CAST": at_limit("CAST(", "i", " AS DOUBLE)"),
    "concat": at_limit("concat(", "s", ", 'x')"), "IN": at_limit("(1 IN (", "i", "))", less=MAX_NESTING // 2 + 1),
}


@pytest.mark.parametrize("expression", [*LONG.values(), *DEEP.values()][::times(2, 1)],
                         ids=[*LONG, *(f"deep {name}" for name in DEEP)][::times(2, 1)])
def test_a_stream_takes_every_expression_that_a_query_takes(db: Embedded, expression: str) -> None:
    """Long rows of operators and the deepest nesting that is allowed: nobody runs out of stack, however deep the
    caller stands."""
    db.execute(f"SELECT ts, {expression} q FROM st")
    text = f"CREATE STREAM s INTO o AS SELECT ts, {expression} q {ROWS}"
    deeper(sys.getrecursionlimit() - 300, lambda: db.execute(text))
    db.execute("DROP STREAM s")


def test_long_rows_of_operators_give_what_short_ones_give(db: Embedded) -> None:
    """Left to right, as typed: the SQL of a row has no parentheses between operators that bind alike."""
    assert db.run(f"SELECT {LONG['+']} FROM st") == [(750.0,), (1000.0,)]
    pairs = {"i - 1 - 1 + i": "((i - 1) - 1) + i", "i / 2 * 3 / 4": "((i / 2) * 3) / 4", "i - (1 - i)": "i - (1 - i)",
             "i * 2 % 5 + 7 - i * 3": "(((i * 2) % 5) + 7) - (i * 3)", "i & 6 | 1 & 3": "((i & 6) | 1) & 3",
             "2 - i * i - 1": "(2 - (i * i)) - 1", "i / (2 * 3)": "i / (2 * 3)"}
    for plain, spelled in pairs.items():
        (left, right), = set(db.run(f"SELECT {plain}, {spelled} FROM st WHERE i = 4"))
        assert left == right, plain
    assert db.run("SELECT 10 - 3 - 2, 100 / 5 / 2, 7 - (3 - 2)") == [(5.0, 10.0, 6.0)]


@pytest.mark.parametrize("text", [
    "SELECT " + "(" * (MAX_NESTING + 1) + "1" + ")" * (MAX_NESTING + 1),
    "SELECT " + "- " * (MAX_NESTING + 1) + "1",
    "SELECT 1 WHERE " + "NOT " * (MAX_NESTING + 1) + "true",
    "SELECT " + "abs(" * (MAX_NESTING + 1) + "1" + ")" * (MAX_NESTING + 1),
    "SELECT " + " + ".join(["1"] * (MAX_CHAIN + 2)),
    "SELECT " + "(" * 3 + "1" + (" + 1" * (MAX_CHAIN - 1) + ")") * 3,
    "SELECT 1 FROM t" + "".join(f" JOIN t t{n} ON t.ts = t{n}.ts" for n in range(60)),
    "SELECT 1 FROM " + "(SELECT 1 FROM " * (MAX_NESTING + 1) + "t" + ")" * (MAX_NESTING + 1),
], ids=["parentheses", "signs", "NOT", "calls", "operators", "rows in rows", "joins", "sub-queries"])
def test_what_is_too_deep_is_told_with_place_and_hint(text: str) -> None:
    """The parser bounds all, before anything is planned."""
    with pytest.raises(SqlSyntaxError) as raised:
        parse_one(text)
    assert raised.value.position is not None
    assert raised.value.hint


def test_unions_are_flat(db: Embedded) -> None:
    """Hundreds of queries are united; where they are too many, that is said."""
    assert db.run(f"SELECT count(*) FROM ({' UNION ALL '.join(['SELECT i FROM st'] * 400)}) x") == [(800,)]
    assert db.run(" UNION ".join(["SELECT i FROM st"] * 300) + " ORDER BY i") == [(3,), (4,)]
    mixed = "SELECT 1 a UNION ALL SELECT 1 UNION SELECT 1 UNION ALL SELECT 1 UNION ALL SELECT 2 ORDER BY a"
    assert db.run(mixed) == [(1,), (1,), (2,)]
    assert db.run("SELECT 1 a UNION ALL (SELECT 2 UNION SELECT 2 LIMIT 1) UNION ALL SELECT 3.5 ORDER BY a") == [
        (1.0,), (2.0,), (3.5,)]
    with pytest.raises(InvalidStatementError, match="900 are possible"):
        db.execute(" UNION ALL ".join(["SELECT i FROM st"] * 1200))


def test_all_columns_of_last_and_first_go_into_a_stream(db: Embedded) -> None:
    """`last(*)` stands for a call per column, as in queries; a star where it means nothing is refused at once."""
    db.execute("CREATE STREAM s INTO o AS SELECT _wstart, last(*), count(*) FROM st INTERVAL(1s)")
    assert [row[0] for row in db.run("DESCRIBE o")][:5] == ["_wstart", "last(ts)", "last(i)", "last(s)", "count(*)"]
    for wrong in ("sum(*)", "last(*) + 1", "count(nowhere.*)"):
        with pytest.raises(PenstockError):
            db.execute(f"CREATE STREAM s2 INTO o2 AS SELECT _wstart, {wrong} FROM st INTERVAL(1s)")


def test_a_stream_whose_plan_cannot_be_made_keeps_no_engine_from_opening(
    db: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is FAILED and says why, whatever was raised, when its stored plan can't be read; its neighbour has a plan."""
    db.execute(f"CREATE STREAM broken INTO o1 AS SELECT ts, i + 4711 q {ROWS}")
    db.execute(f"CREATE STREAM sound INTO o2 AS SELECT ts, i q {ROWS}")
    plan_stream = stream_planning.plan_stream

    def raising(statement: object, *rest: object) -> object:
        if "4711" in statement.source_text:  # type: ignore[attr-defined]
            raise RecursionError("maximum recursion depth exceeded")
        return plan_stream(statement, *rest)  # type: ignore[arg-type]

    def unreadable(_text: str) -> object:
        raise ValueError("the format of stored plans 0 is unknown")

    monkeypatch.setattr(stream_planning, "plan_stream", raising)
    monkeypatch.setattr(stream_starts.stored_plan, "decode", unreadable)
    db.reopen()
    states = dict(db.run("SELECT stream_name, status FROM information_schema.ins_streams"))
    assert states["broken"] == "failed"
    assert states["sound"] != "failed"
    (reason,), = db.run("SELECT reason FROM information_schema.ins_streams WHERE stream_name = 'broken'")
    assert "RecursionError" in reason


def test_an_engine_with_a_long_expression_opens_far_down_the_stack(db: Embedded) -> None:
    """What was planned at the top is planned again below a caller that stands deep, as a notebook does."""
    db.execute(f"CREATE STREAM s INTO o AS SELECT ts, {' + '.join(['i'] * 40)} q {ROWS}")
    deeper(sys.getrecursionlimit() - 300, db.reopen)
    assert dict(db.run("SELECT stream_name, status FROM information_schema.ins_streams"))["s"] != "failed"


def test_a_stack_of_ones_own_is_made_only_for_callers_that_stand_deep() -> None:
    """Near the top the function is called as it is; further down it has the same room, and errors come out."""
    import threading

    called = with_headroom(lambda: threading.current_thread())
    assert called() is threading.current_thread()
    assert deeper(FRAMES_OF_CALLERS, called) is not threading.current_thread()

    @with_headroom
    def fail() -> None:
        raise InvalidStatementError("no")

    with pytest.raises(InvalidStatementError, match="no"):
        deeper(FRAMES_OF_CALLERS, fail)


def test_kernels_are_made_of_what_is_simple_only() -> None:
    """Deep or long expressions are left to DuckDB before anything calls itself over them."""
    types = {"a": kernel_planner.Kind.DOUBLE}

    def made(tree: exp.Expression) -> bool:
        return kernel_planner.expression_kernel(tree, types) is not None

    value: exp.Expression = exp.column("a")
    deep, wide = value, fragment("a = 1")
    for _ in range(kernel_planner.MAX_DEPTH + 1):
        deep = exp.Paren(this=deep)
    for _ in range(12):
        wide = fragment("CASE WHEN :wide THEN :wide END", wide=wide)
    assert made(fragment("((a + a) + a)"))
    assert not made(deep)
    assert not made(wide)


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_a_trace_in_the_log_is_bounded(formatter: logging.Formatter) -> None:
    """However deep the calls were, the log gets their begin and their end."""
    def chained(levels: int) -> None:
        try:
            if levels:
                chained(levels - 1)
            raise ValueError("at the bottom")
        except (ValueError, KeyError) as error:
            raise KeyError(f"level {levels}") from error

    with pytest.raises(KeyError) as raised:
        chained(60)
    record = logging.LogRecord("penstock", logging.ERROR, "", 0, "failed", None,
                               (raised.type, raised.value, raised.tb))
    text = formatter.format(record)
    assert len(text) < 2 * MAX_TRACE
    assert "characters are left out" in text
    assert "level 60" in text


def calls_of(work: Callable[[], object]) -> int:
    """Returns how many calls of Python functions `work` makes: the same on any machine."""
    made = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal made
        made += event == "call"

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return made


@pytest.mark.parametrize("text_of", [
    lambda n: f"SELECT ts FROM st WHERE i IN ({', '.join(map(str, range(n)))})",
    lambda n: f"SELECT ts FROM st WHERE {' OR '.join(f'i = {k}' for k in range(n))}",
    lambda n: f"SELECT CASE {' '.join(f'WHEN i = {k} THEN {k}' for k in range(n))} END FROM st",
    lambda n: f"SELECT {', '.join(f'i c{k}' for k in range(n))} FROM st",
], ids=["IN", "OR", "CASE", "columns"])
def test_planning_takes_calls_in_proportion_to_the_text(db: Embedded, text_of: Callable[[int], str]) -> None:
    """Eight times the parts take at most ten times the calls."""
    small, large = f"EXPLAIN {text_of(100)}", f"EXPLAIN {text_of(800)}"
    db.execute(small)
    assert calls_of(lambda: db.execute(large)) < 10 * calls_of(lambda: db.execute(small))
