"""Columns, tags, aliases and tables whose names differ in case only, or are such as the SQL that is made has.

What is asked of them, by queries and by streams, has the answer that plainly named ones have over the same rows.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from conftest import times
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from kits.basics.extreme_values import CASES, quoted
from kits.basics.faulty_fs import FaultyFs
from kits.queries.targets import Boxed
from kits.streams.shared_computers import share_computers

from penstock.mnode.admin.sandbox import Sandbox

share_computers()

NUMBERS = itertools.count()
#: What is named: columns and tags, aliases, and relations.
COLUMNS, ALIASES, TABLES = ("ca", "cb", "cc", "ga", "gb"), ("aa", "ab", "ac", "ad"), ("st", "ot", "t0", "t1")
FILLS = ("NULL", "PREV", "NEXT", "LINEAR", "VALUE, 1, 2")
PLAIN = {name: name for name in (*COLUMNS, *ALIASES, *TABLES)}
FUNCTIONS = '''
def same(values):
    return values

class Total:
    def init(self):
        return 0
    def accumulate(self, state, values):
        return state + sum(values.drop_null().to_pylist())
    def merge(self, left, right):
        return left + right
    def finish(self, state):
        return state
'''
WRITES = ("CREATE STABLE :st (ts TIMESTAMP, :ca INT, :cb INT, :cc VARCHAR(9)) TAGS (:ga INT, :gb VARCHAR(9))",
          "CREATE TABLE :ot (ts TIMESTAMP, :ca INT, :cb INT)",
          "INSERT INTO :t0 USING :st TAGS (1, 'x') VALUES (1700000001000, 1, 20, 'p') "
          "(1700000002000, 2, 30, 'q') (1700000012000, 3, 50, 'p')",
          "INSERT INTO :t1 (ts, :cb, :ca, :cc) USING :st (:gb, :ga) TAGS ('y', 2) "
          "VALUES (1700000001000, 70, 5, 'q')",
          "INSERT INTO :ot VALUES (1700000001000, 100, 200) (1700000002000, 300, 500)")
QUERIES = (
    "SELECT * FROM :st ORDER BY ts, :ga", "SELECT :ca, :cb, :cc, :ga, :gb FROM :t0 ORDER BY ts",
    "SELECT :cb - :ca AS :aa, :ca + :ga AS :ab FROM :st WHERE :ga < 3 AND :cb > :ca ORDER BY :aa DESC, :ab",
    "SELECT :ab, :aa FROM (SELECT ts, :ca AS :aa, :cb AS :ab FROM :st) ORDER BY :aa",
    "SELECT :ga, :gb, sum(:ca), max(:cb) FROM :st GROUP BY :ga, :gb ORDER BY :ga",
    "SELECT DISTINCT :gb, :ga FROM :st ORDER BY :ga", "SELECT TAGS :ga, :gb FROM :st ORDER BY 1",
    "SELECT _wstart, :aa, sum(:cb) FROM :st PARTITION BY :gb AS :aa INTERVAL(10s) ORDER BY _wstart, :aa",
    "SELECT _wstart, sum(:ca), avg(:cb) FROM :t0 WHERE ts >= 1700000000000 AND ts < 1700000020000 "
    "INTERVAL(5s) FILL(PREV)",
    "SELECT _wstart, :cc, count(*), max(:ca) FROM :t0 STATE_WINDOW(:cc)",
    "SELECT last(:ca), first(:cb), last_row(:cc) FROM :st", "SELECT :cb, diff(:ca) FROM :t0",
    "SELECT _irowts, interp(:ca) FROM :t0 "
    "RANGE(1700000001000, 1700000003000) EVERY(1s) FILL(LINEAR)",
    "SELECT tbname, csum(:cb) FROM :st PARTITION BY tbname ORDER BY 1, 2",
    "SELECT :aa.:ca, :ab.:ca, :aa.:cb, :ab.:cb, :aa.:gb FROM :st :aa JOIN :ot :ab ON :aa.ts = :ab.ts ORDER BY 1",
    "SELECT :ca AS :aa, :cb AS :ab FROM :t0 UNION ALL SELECT :ca, :cb FROM :ot ORDER BY :ab, :aa",
    "SELECT :aa, count(*) FROM (SELECT ts, :cc AS :aa, :ca AS :ab FROM :st) WHERE :ab > 1 GROUP BY :aa ORDER BY :aa",
    "SELECT :aa, :ab FROM (SELECT :ab AS :aa, :aa AS :ab FROM (SELECT :ca AS :aa, :cb AS :ab FROM :st)) ORDER BY 1",
    "SELECT :aa.*, :ab.:cb FROM :st :aa JOIN :ot :ab ON :aa.ts = :ab.ts ORDER BY 1",
    "SELECT :aa.ts, :aa.:ca, :ab.:ca, :ab.:cb FROM :st :aa LEFT ASOF JOIN :ot :ab ON :aa.ts >= :ab.ts ORDER BY 1",
    "SELECT :aa.ts, count(:ab.:ca), sum(:ab.:cb) FROM :t0 :aa LEFT WINDOW JOIN :ot :ab WINDOW_OFFSET(-20s, 2s)",
    "SELECT :aa.:ca, :aa.:cb, :ab.:gb FROM :st :aa JOIN (SELECT TAGS :ga, :gb FROM :st) :ab ON :aa.:ca = :ab.:ga",
    "SELECT same(:ca), same(:cb) FROM :st", "SELECT total(:ca), total(:cb), :gb FROM :st GROUP BY :gb",
    *("SELECT _wstart, :gb, sum(:ca) AS :aa, max(:cb) AS :ab FROM :st WHERE ts >= 1700000000000 AND ts < 1700000020000 "
      f"PARTITION BY :gb INTERVAL(4s) FILL({fill})" for fill in FILLS))
STREAMS = (
    ("SELECT ts, :ca AS :aa, :cb - :ca AS :ab FROM :ot", "ts, :aa, :ab"),
    ("SELECT _wstart ws, sum(:ca) AS :aa, max(:cb) AS :ab FROM :st WHERE :cb > :ca PARTITION BY :ga INTERVAL(10s)",
     "ws, :aa, :ab"),
    ("SELECT _wstart ws, avg(:cb) AS :ab, last(:cc) AS :aa FROM :st PARTITION BY :gb, :ga INTERVAL(5s)",
     "ws, :ab, :aa"),
    ("SELECT _wstart ws, first(:ca) AS :aa, last(:cb) AS :ab FROM :st PARTITION BY tbname STATE_WINDOW(:cc)",
     "ws, :aa, :ab"),
    ("SELECT _wstart ws, stddev(:cb) AS :aa, count(:ca) AS :ab FROM :st PARTITION BY tbname SESSION(ts, 3s)",
     "ws, :aa, :ab"),
    ("SELECT l.ts ts, l.:ca AS :aa, r.:cb AS :ab FROM :t0 l JOIN :ot r ON l.ts = r.ts", "ts, :aa, :ab"),
    ("SELECT l.ts ts, l.:cb AS :aa, r.:ca AS :ab FROM :st l LEFT ASOF JOIN :ot r ON l.ts >= r.ts PARTITION BY l.tbname",
     "ts, :aa, :ab"),
    ("SELECT l.ts ts, count(r.:ca) AS :aa, sum(r.:cb) AS :ab FROM :t0 l LEFT WINDOW JOIN :ot r WINDOW_OFFSET(-9s, 2s)",
     "ts, :aa, :ab"),
    ("SELECT l.ts ts, l.:cb AS :aa, r.:gb AS :ab FROM :st l LEFT JOIN (SELECT TAGS :ga, :gb FROM :st) r "
     "ON l.:ca = r.:ga PARTITION BY l.tbname", "ts, :aa, :ab"),
    ("SELECT _wstart ws, total(:ca) AS :aa, max(same(:cb)) AS :ab FROM :st PARTITION BY :gb INTERVAL(5s)",
     "ws, :aa, :ab"),
    *((f"SELECT _wstart ws, sum(:ca) AS :aa, max(:cb) AS :ab FROM :st PARTITION BY :gb INTERVAL(4s) FILL({fill})",
       "ws, :aa, :ab") for fill in FILLS[1:4]))
#: Of both: by day every second one.
SOME_QUERIES, SOME_STREAMS = QUERIES[::times(2, 1)], STREAMS[::times(2, 1)]
#: What stands before AS, of streams with groups by two tags, and what is asked.
TARGETS = (
    ("(ws, :ab, :aa) TAGS (:ac VARCHAR(9), :ad INT) SUBTABLE(concat('o', :ac))", "ws, :ab, :aa, :ac, :ad"),
    ("(ws, :aa PRIMARY KEY, :ab)", "ws, :aa, :ab"),
    ("(ws, :ab, :aa) TAGS (:ad, :ac)", "ws, :ab, :aa, :ac, :ad"))


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Boxed]:
    folder = tmp_path_factory.mktemp("functions")
    (folder / "names_functions.py").write_text(FUNCTIONS)
    with pytest.MonkeyPatch.context() as patch, Sandbox(fs=FaultyFs()) as box:
        patch.syspath_prepend(folder)
        box.execute("CREATE FUNCTION same (BIGINT) RETURNS BIGINT LANGUAGE PYTHON AS 'names_functions:same'")
        box.execute("CREATE AGGREGATE FUNCTION total (BIGINT) RETURNS BIGINT LANGUAGE PYTHON "
                    "AS 'names_functions:Total'")
        yield Boxed(box)


@st.composite
def namings(draw: st.DrawFn) -> dict[str, str]:
    """Names, of which those of one kind are different ones."""
    names: dict[str, str] = {}
    for kind in (COLUMNS, ALIASES, TABLES):
        names |= zip(kind, draw(st.permutations(CASES))[:len(kind)], strict=True)
    return names


def _said(text: str, names: Mapping[str, str]) -> str:
    return re.sub(r":([a-z]\w)", lambda found: quoted(names[found[1]]), text)


def _answers(target: Boxed, names: Mapping[str, str]) -> list[tuple[str, list[Any]]]:
    """What is answered to all questions, where child tables have their plain names."""
    database, found = f"d{next(NUMBERS)}", []
    plain = {names[table]: table for table in ("t0", "t1")}

    def ask(query: str, text: str) -> None:
        rows = [tuple(plain.get(value, value) for value in row) for row in target.ask(text)]
        found.append((query, sorted(rows, key=repr)))

    target.execute(f"CREATE DATABASE {database}")
    target.execute(f"USE {database}")
    try:
        for write in WRITES[:3]:
            target.execute(_said(write, names))
        for number, (query, _) in enumerate(SOME_STREAMS):
            target.execute(f"CREATE STREAM {database}_{number} TRIGGER AT_ONCE IGNORE EXPIRED 0 IGNORE UPDATE 0 "
                           f"FILL_HISTORY 1 INTO `out {number}` AS {_said(query, names)}")
        target.execute(_said("CREATE STABLE `into 2` (ws TIMESTAMP, :aa BIGINT, :ab BIGINT) "
                             "TAGS (:ac VARCHAR(9), :ad INT)", names))
        for number, (into, _) in enumerate(TARGETS):
            target.execute(_said(
                f"CREATE STREAM {database}_into_{number} TRIGGER AT_ONCE IGNORE EXPIRED 0 IGNORE UPDATE 0 INTO "
                f"`into {number}` {into} AS SELECT _wstart ws, sum(:ca), sum(:cb) FROM :st "
                "PARTITION BY :gb :ac, :ga :ad INTERVAL(5s)", names))
        for write in WRITES[3:]:
            target.execute(_said(write, names))
        for query in SOME_QUERIES:
            ask(query, _said(query, names))
        for number, (query, shown) in enumerate(SOME_STREAMS):
            ask(query, _said(f"SELECT {shown} FROM `out {number}`", names))
        for number, (into, shown) in enumerate(TARGETS):
            ask(into, _said(f"SELECT {shown} FROM `into {number}`", names))
        return found
    finally:
        for name in (*range(len(SOME_STREAMS)), *(f"into_{number}" for number in range(len(TARGETS)))):
            target.execute(f"DROP STREAM IF EXISTS {database}_{name}")
        target.execute(f"DROP DATABASE {database}")


@pytest.fixture(scope="module")
def plain(target: Boxed) -> list[tuple[str, list[Any]]]:
    found = _answers(target, PLAIN)
    assert all(rows for _, rows in found), found
    return found


@settings(max_examples=times(2, 500), deadline=None, phases=[Phase.explicit, Phase.generate])
@given(namings())
def test_names_make_no_difference(
    target: Boxed, plain: list[tuple[str, list[Any]]], names: dict[str, str]
) -> None:
    """Queries, joins, streams and child tables, whatever they call what they read and give."""
    for (query, want), (_, got) in zip(plain, _answers(target, names), strict=True):
        assert got == want, _said(query, names)


@given(st.permutations(CASES).map(lambda names: [n for n in names if " " not in n and "'" not in n and '"' not in n]))
@settings(max_examples=times(3, 100))
def test_line_protocol_keeps_names(target: Boxed, names: list[str]) -> None:
    """Fields and tags have the names that lines give them."""
    database = f"d{next(NUMBERS)}"
    target.execute(f"CREATE DATABASE {database} PRECISION 'ns'")
    tags, fields = names[:3], names[3:8]
    line = (f"m,{','.join(f'{name}={n}' for n, name in enumerate(tags))} "
            f"{','.join(f'{name}={n}i' for n, name in enumerate(fields))} 1746000000000000000")
    target.box.engine.ingest_lines(line.encode(), database, "ns", target.box.session)
    asked = ", ".join(map(quoted, [*tags, *fields]))
    assert target.ask(f"SELECT {asked} FROM {database}.m") == [("0", "1", "2", 0, 1, 2, 3, 4)]
    target.execute(f"DROP DATABASE {database}")
