"""CREATE TABLE of many child tables: what its pattern reads is what the parser reads, and all else is left to that."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kits.engines.sandboxes import TestBed

from penstock.common.errors import PenstockError
from penstock.mnode.access.audit_log import object_of, words_of
from penstock.mnode.ddl.plain_children import plain_children
from penstock.sql.dialect.parser import parse_one
from penstock.sql.rows.child_pattern import read_plain_children

TAGS = ("i INT, u TINYINT UNSIGNED, b BIGINT, f FLOAT, d DOUBLE, o BOOL, s VARCHAR(8), n NCHAR(4), t TIMESTAMP, "
        "x VARBINARY(4)")
NULLS = ", NULL" * 8


@pytest.fixture(scope="module")
def bed() -> Iterator[TestBed]:
    with TestBed() as made:
        made.all("CREATE DATABASE e", "CREATE STABLE e.m (ts TIMESTAMP, v INT) TAGS (i INT)", "CREATE DATABASE d",
                 "USE d", f"CREATE STABLE m (ts TIMESTAMP, v INT) TAGS ({TAGS})",
                 f"CREATE STABLE `m 2` (ts TIMESTAMP, v INT) TAGS ({TAGS})",
                 "CREATE STABLE odd (ts TIMESTAMP, v INT) TAGS (`a,ab` INT, `A` INT, a INT, `a``` INT)",
                 "CREATE TABLE normal (ts TIMESTAMP, v INT)", "CREATE TABLE there USING m (i) TAGS (7)")
        yield made


def made_by(bed: TestBed, text: str, *, whole_way: bool) -> object:
    """Returns which child tables a statement has made, which are dropped again, or what it failed with."""
    try:
        if whole_way:
            bed.engine.execute_parsed(parse_one(text), text, bed.session)
        else:
            bed.engine.execute(text, bed.session)
    except PenstockError as error:
        return type(error), error.message, error.hint, error.code
    found = [(table.name, child.name, child.tag_values, child.vgroup_id)
             for database in ("d", "e") for table in bed.engine.catalog.tables(database, "super")
             for child in bed.engine.catalog.children(table.uid)]
    for database in ("d", "e"):
        for table in bed.engine.catalog.tables(database, "super"):
            bed.all(*(f"DROP TABLE {database}.`{child.name}`" for child in bed.engine.catalog.children(table.uid)
                      if child.name != "there"))
    return found


def is_plain(bed: TestBed, text: str) -> bool:
    statement = read_plain_children(text)
    return statement is not None and statement.plain is not None and plain_children(
        statement.plain, bed.session.freeze(bed.engine.clock.now_ms()), bed.engine.catalog) is not None


@pytest.mark.parametrize("text", [
    f"CREATE TABLE a USING m TAGS (1, 2{NULLS}) b USING m TAGS (-1, 255{NULLS})",
    f" create table A using M tags(1,2{NULLS}),`B` using M tags ( 3 , NULL{NULLS} ) ;",
    "CREATE TABLE d.a USING m (i, s) TAGS (1, 'x') d.b USING m (i, s) TAGS (2, NULL)",
    "CREATE TABLE a USING d.m (`s`, i) TAGS ('x y', 1) `1 b` USING d.m (`s`, i) TAGS ('', 2)",
    "CREATE TABLE IF NOT EXISTS there USING `m 2` (i) TAGS (1) b USING `m 2` (i) TAGS (2)",
    "CREATE TABLE a USING m (f, d, o) TAGS (0.1, 1.5, true) b USING m (f, d, o) TAGS (16777217, -2, 0)",
    "CREATE TABLE a USING odd (`a,ab`, `A`) TAGS (1, 2) b USING odd (`a,ab`, `A`) TAGS (3, 4)",
    "CREATE TABLE a USING m (t, x) TAGS (1700000000000, 'ab') b USING m (t, x) TAGS ('2024-01-01 00:00:00', NULL)",
])
def test_plain_statements_do_what_they_do_the_whole_way(bed: TestBed, text: str) -> None:
    """Names of every form, tags in any order, values of every type."""
    assert is_plain(bed, text)
    found = made_by(bed, text, whole_way=False)
    assert isinstance(found, list)
    assert found == made_by(bed, text, whole_way=True)


@pytest.mark.parametrize("text", [
    "CREATE TABLE a USING m (i) TAGS (1)",
    "CREATE TABLE a USING m (i) TAGS (1) b USING `m 2` (i) TAGS (2)",
    "CREATE TABLE a USING m (i) TAGS (1) b USING m (i, s) TAGS (2, 'x')",
    "CREATE TABLE a USING m (i) TAGS (1) IF NOT EXISTS b USING m (i) TAGS (2)",
    "CREATE TABLE a USING m (i) TAGS (1) a USING m (i) TAGS (2)",
    "CREATE TABLE IF NOT EXISTS a USING m (i) TAGS (1) a USING m (i) TAGS (2)",
    "CREATE TABLE a USING m (i) TAGS (1) there USING m (i) TAGS (2)",
    "CREATE TABLE a USING m (i) TAGS (1) normal USING m (i) TAGS (2)",
    "CREATE TABLE a USING m (i) TAGS (1) b USING m (i) TAGS (2) c",
    "CREATE TABLE a USING m (i) TAGS (1) b USING m (i) TAGS (2",
    "CREATE TABLE a USING m (i) TAGS (1), b USING m (i) TAGS (2),",
    "CREATE TABLE , a USING m (i) TAGS (1) b USING m (i) TAGS (2)",
    "CREATE TABLE a USING m (i) TAGS (1) table USING m (i) TAGS (2)",
    "CREATE TABLE a USING m (i) TAGS (1) `b.c` USING m (i) TAGS (2)",
    "CREATE TABLE a USING m (i) TAGS (1) b USING m (i) TAGS (2147483648)",
    "CREATE TABLE a USING m (i) TAGS (1) b USING m (i) TAGS ('x')",
    "CREATE TABLE a USING m (i) TAGS (1) b USING m (i) TAGS (1 + 1)",
    "CREATE TABLE a USING m (s) TAGS ('x') b USING m (s) TAGS ('123456789')",
    "CREATE TABLE a USING m (s) TAGS ('x') b USING m (s) TAGS ('it''s')",
    "CREATE TABLE a USING m (i, i) TAGS (1, 2) b USING m (i, i) TAGS (1, 2)",
    "CREATE TABLE a USING m (i, y) TAGS (1, 2) b USING m (i, y) TAGS (1, 2)",
    "CREATE TABLE a USING m (i, s) TAGS (1) b USING m (i, s) TAGS (1)",
    "CREATE TABLE a USING m TAGS (1) b USING m TAGS (1)",
    "CREATE TABLE a USING odd (`a```) TAGS (1) b USING odd (`a```) TAGS (2)",
    "CREATE TABLE a USING nothing TAGS (1) b USING nothing TAGS (1)",
    "CREATE TABLE a USING normal TAGS (1) b USING normal TAGS (1)",
    "CREATE TABLE a USING e.m TAGS (1) b USING e.m TAGS (1)",
    "CREATE TABLE e.a USING m TAGS (1) e.b USING m TAGS (1)",
    "CREATE TABLE a USING m (i) TAGS (1) /* and */ b USING m (i) TAGS (2)",
    "CREATE TABLE a USING m (i) TAGS (1) b USING m (i) TAGS (2) TTL 5",
])
def test_what_isnt_plain_is_left_to_the_parser(bed: TestBed, text: str) -> None:
    """With the same tables, or the same error and place in the text."""
    assert not is_plain(bed, text)
    assert made_by(bed, text, whole_way=False) == made_by(bed, text, whole_way=True)


VALUE = st.sampled_from(["0", "-0", "1", "-128", "256", "00", "+1", "1.5", "-.5", "1e3", "9223372036854775808", "true",
                         "FALSE", "null", "'a'", "'ä'", "''", "'1'", "'true'", "'\\x41'", "now", "'2024-02-30'", "abc"])


@settings(deadline=None)
@given(st.lists(st.tuples(*[VALUE] * 2), min_size=2, max_size=4), st.tuples(*[st.sampled_from("iubfdosntx")] * 2))
def test_any_values_are_the_same_both_ways(bed: TestBed, rows: list[tuple[str, str]], tags: tuple[str, str]) -> None:
    """Whether the pattern takes them or not."""
    text = "CREATE TABLE " + " ".join(
        f"c{number} USING m ({', '.join(tags)}) TAGS ({', '.join(values)})" for number, values in enumerate(rows))
    assert made_by(bed, text, whole_way=False) == made_by(bed, text, whole_way=True)


def test_the_audit_log_names_the_tables(bed: TestBed) -> None:
    """As it names those of any other statement."""
    text = "CREATE TABLE d.a USING m (i) TAGS (1) d.b USING m (i) TAGS (2)"
    statement = read_plain_children(text)
    assert statement is not None
    whole = parse_one(text)
    assert (words_of(statement), object_of(statement)) == (words_of(whole), object_of(whole))
