"""Statements as sqlglot expressions: what makes them equal, what copies share, and what is never shown."""

from __future__ import annotations

import pytest
from sqlglot import exp

from penstock.sql.dialect.parser import parse_one
from penstock.sql.tree.statements import (
    CreateConnection,
    CreateStream,
    CreateUser,
    DropStream,
    Name,
    Select,
    SelectItem,
    StreamOptions,
    TableSource,
)


@pytest.mark.parametrize(("one", "other"), [
    ("create stream s ignore expired 0 into o as select * from t", "create stream s into o as select * from t"),
    ("create stream s ignore expired 0 into o as select * from t",
     "create stream s ignore expired 1 into o as select * from t"),
    ("create table `A` (ts timestamp)", "create table a (ts timestamp)"),
    ("select 'A' from t", "select 'a' from t"),
    ("select a from t limit 1", "select a from t"),
    ("show tables like 'A%'", "show tables like 'a%'"),
])
def test_what_says_something_else_is_not_equal(one: str, other: str) -> None:
    """Unlike sqlglot's own comparison, which overlooks upper case, and what is 0 or FALSE."""
    assert parse_one(one) != parse_one(other)


def test_the_way_it_was_typed_does_not_count() -> None:
    """White space, upper case of words and names, and what is as by default."""
    one, other = (parse_one(text) for text in (
        "create stream s into o as select a from t limit 2 offset 0",
        "CREATE  STREAM S INTO `o` AS SELECT A FROM T LIMIT 2"))
    assert one == other
    assert hash(one) == hash(other)
    assert isinstance(one, CreateStream)
    assert isinstance(other, CreateStream)
    assert one.source_text != other.source_text


def test_a_changed_copy_leaves_the_first_as_it_was() -> None:
    """And shares no expression with it, since an expression has one parent."""
    first = parse_one("select a, b from t where a > 1")
    assert isinstance(first, Select)
    second = first.with_changes(where=None, distinct=True)
    assert (second.where, second.distinct, second.source_text) == (None, True, first.source_text)
    assert second.items == first.items
    assert first == parse_one("select a, b from t where a > 1")
    assert {id(node) for node in first.walk()} & {id(node) for node in second.walk()} == set()


def test_expressions_that_are_part_of_a_tree_are_copied_into_another() -> None:
    """So that either knows its parent."""
    column = exp.column("a")
    one = Select((SelectItem(column, None, "a"),), TableSource(Name("t")))
    other = Select((SelectItem(column, None, "a"),), TableSource(Name("t")))
    assert one == other
    assert one.items[0].expression is column
    assert other.items[0].expression is not column
    assert column.parent is one.items[0]


def test_a_change_is_seen_though_the_hash_was_known() -> None:
    """Hashes are kept per node; changing one drops it, and what is as by default is dropped from the node."""
    statement = DropStream("s", if_exists=True)
    before = hash(statement)
    assert statement.change(if_exists=False) == DropStream("s")
    assert hash(statement) != before
    assert statement.args == {"name": "s"}


def test_parts_are_checked() -> None:
    """As the arguments of other classes are."""
    with pytest.raises(TypeError, match="has no 'nmae'"):
        DropStream(nmae="s")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="has 3 parts, not 4"):
        DropStream("s", True, True, 1)  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        DropStream("s").name = "t"  # type: ignore[misc]
    assert StreamOptions(ignore_expired=False).ignore_expired is False
    assert StreamOptions().ignore_expired is None


def test_secrets_are_printed_by_sql_alone() -> None:
    """Passwords are in what is executed, not in what logs and errors show."""
    user = CreateUser("u", "s3cret!")
    connection = CreateConnection("c", "pg", (("password", "s3cret!"),))
    for statement in (user, connection):
        assert "s3cret!" not in f"{statement} {statement!r}"
        assert "s3cret!" in statement.sql()
        assert parse_one(statement.sql()) == statement
