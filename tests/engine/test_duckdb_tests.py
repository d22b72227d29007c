"""What plays DuckDB's test files reads them, mirrors their tables, and tells right answers from wrong ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from kits.duckdb_tests.judging import decided, difference
from kits.duckdb_tests.player import Player, opened
from kits.duckdb_tests.script import NotPlayedError, recorded
from kits.duckdb_tests.spelling import rewritten
from programs.duckdb_tests import report, table

LOOPS = """
# a comment
foreach type <signed> !bigint

statement ok
CREATE TABLE t_${type} (v {type})

loop i 0 2

onlyif i=1
query I rowsort
SELECT v
FROM t_${type} WHERE v = ${i};
----
1

endloop

endloop

statement error
SELECT nothing
----
Binder Error
"""


def test_loops_are_written_out() -> None:
    """Each round of loops within loops has its values, and conditions leave some out."""
    found = [(each.expected, each.sql) for each in recorded(LOOPS)]
    assert found == [
        *((expected, text.format(type)) for type in ("tinyint", "smallint", "integer", "hugeint")
          for expected, text in (("ok", "CREATE TABLE t_{0} (v {0})"), ("rows", "SELECT v\nFROM t_{} WHERE v = 1"))),
        ("error", "SELECT nothing")]
    assert [each.ordered for each in recorded(LOOPS)][1] is False


def test_a_file_that_requires_more_is_not_played() -> None:
    """What comes before the requirement is."""
    found = recorded("statement ok\nSELECT 1\n\nrequire httpfs\n\nstatement ok\nSELECT 2\n")
    assert next(found).sql == "SELECT 1"
    with pytest.raises(NotPlayedError, match="httpfs"):
        next(found)


@pytest.mark.parametrize(("theirs", "ours"), [
    ('SELECT "A b", \'c"d\' FROM "T"', "SELECT `a b`, 'c\"d' FROM `t`"),
    ("SELECT '\\d' -- \"x\"", "SELECT '\\\\d'  "),
    ('SELECT "a""b`c"', 'SELECT `a"b``c`'),
])
def test_statements_are_spelled_as_the_dialect_has_them(theirs: str, ours: str) -> None:
    """Names in double quotes get back-quotes, and backslashes are plain."""
    assert rewritten(theirs) == ours


@pytest.mark.parametrize(("ours", "theirs", "ordered", "found"), [
    ([(1, "a")], [(1.0, "a")], True, None),
    ([(Decimal("0.1"),)], [(0.1000000001,)], True, None),
    ([(2,), (1,)], [(1,), (2,)], False, None),
    ([(2,), (1,)], [(1,), (2,)], True, "the same rows in another order"),
    ([(1,)], [(2,)], True, "1 instead of 2"),
    ([(None,)], [(0,)], True, "None instead of 0"),
    ([(1,)], [(1,), (1,)], False, "1 rows instead of 2"),
    ([(1, 2)], [(1,)], False, "2 columns instead of 1"),
])
def test_differences_are_told(
    ours: list[tuple[object, ...]], theirs: list[tuple[object, ...]], ordered: bool, found: str | None,
) -> None:
    """Numbers are compared by value, rows in order where there is one."""
    assert difference(ours, theirs, ordered=ordered) == found


def test_differences_by_decision_are_told() -> None:
    """NULL may stand for infinity and for integers of more than 64 bits, but for nothing else."""
    beyond = "what isn't finite, or beyond 64 bits, is NULL"
    assert decided([(None, 1)], [(float("inf"), 1)]) == beyond
    assert decided([(None,), (None,)], [(2**70,), (float("nan"),)]) == beyond
    assert decided([(86_400_000,)], [(pa.MonthDayNano((0, 1, 0)),)]) == "the difference of times is a number"
    assert decided([(None,)], [(5,)]) is None
    assert decided([(None,), (1,)], [(2**70,), (2,)]) is None


@pytest.fixture(scope="module")
def player(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Player]:
    engine = opened(tmp_path_factory.mktemp("files") / "data")
    yield Player(engine)
    engine.close()


PLAYED = """
statement ok
CREATE TABLE t (i INTEGER, "Name" VARCHAR, w TIMESTAMP)

statement ok
INSERT INTO t SELECT n, 'x' || n, TIMESTAMP '2024-01-01' + INTERVAL (n) DAY FROM range(3) r(n)

query ITT
SELECT * FROM t ORDER BY i
----
0	x0	2024-01-01

statement ok
CREATE VIEW v AS SELECT i + 1 AS j FROM t

query I
SELECT sum(j) FROM v
----
6

statement ok
UPDATE t SET i = 10 WHERE i = 0

query I
SELECT max(i) FROM t
----
10

query I
SELECT length('ü')
----
1

query I
SELECT nothing_of_this_name(1)
----
1

query I
SELECT count(*) FROM 'x.parquet'
----
1

statement error
SELECT wrong FROM t
----
Binder Error
"""


def test_a_file_is_played(player: Player) -> None:
    """Tables hold what DuckDB has made of them; a meaning that was decided is told from a wrong answer."""
    found = [(verdict.outcome, verdict.reason) for verdict in player.play(PLAYED) if verdict.sql.startswith("SELECT")]
    assert found == [
        ("passed", ""), ("passed", ""), ("passed", ""), ("decided", "functions that TDengine defines"),
        ("skipped", "DuckDB: CatalogException"), ("skipped", "DuckDB: PermissionException"), ("passed", "")]


def test_what_fails_is_told_with_its_reason(player: Player) -> None:
    """Statements that want the same cure have the same reason, and the shortest is shown."""
    text = "".join(f"\nquery I\n{sql}\n----\n1\n" for sql in (
        "SELECT 1 AS a, sleep_ms(0)", "SELECT sleep_ms(0)"))
    found = list(player.play(text))
    assert [verdict.outcome for verdict in found] == ["failed", "failed"]
    shown = report({Path("f.test"): found}, "failed", 9)
    assert shown.startswith("- **2** in 1 files: function sleep_ms() does not exist\n  `SELECT sleep_ms(0)` (f.test:7)")


def test_counts_are_told_by_folder() -> None:
    """The share is that of the statements that are compared."""
    lines = table({"a": Counter(passed=3, failed=1), "b": Counter(skipped=5)}).splitlines()
    assert lines[2:] == ["| a | 3 | 0 | 0 | 1 | 0 | 0 | 0 | 75% |", "| b | 0 | 0 | 0 | 0 | 0 | 0 | 5 |  |",
                         "| all | 3 | 0 | 0 | 1 | 0 | 0 | 5 | 75% |"]
