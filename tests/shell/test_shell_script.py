"""Input is cut into statements and commands at the right places."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.shell.terminal.script import (
    Piece,
    ShellCommand,
    SqlText,
    is_complete,
    left_open,
    may_complete,
    split,
    split_all,
)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("select 1; select 2;", [SqlText("select 1"), SqlText("select 2")]),
        ("select 1", [SqlText("select 1")]),
        ("select * from t\\G", [SqlText("select * from t", vertical=True)]),
        ("select * from t\\G;", [SqlText("select * from t", vertical=True)]),
        ("select ';' , \"a;b\", `c;d`;", [SqlText("select ';' , \"a;b\", `c;d`")]),
        ("select 'it''s; \\'fine\\'';", [SqlText("select 'it''s; \\'fine\\''")]),
        ("-- a; comment\nselect 1; /* b; */ ;", [SqlText("select 1")]),
        ("select 1 -- trailing; comment\n, 2;", [SqlText("select 1 -- trailing; comment\n, 2")]),
        (".mode csv\nselect 1;", [ShellCommand("mode", ("csv",)), SqlText("select 1")]),
        ("q", [ShellCommand("quit")]),
        ("EXIT;", [ShellCommand("quit")]),
        (".exit", [ShellCommand("quit")]),
        ("source 'a b.sql';", [ShellCommand("read", ("a b.sql",))]),
        ("set max_binary_display_width 20;", [ShellCommand("width", ("20",))]),
        ("help", [ShellCommand("help")]),
        ("?", [ShellCommand("help")]),
        ("quit_table", [SqlText("quit_table")]),
        ("\\q", [ShellCommand("quit")]),
        ("\\?", [ShellCommand("help")]),
        ("\\d\n\\dt+\n\\l;", [ShellCommand("tables"), ShellCommand("tables"), ShellCommand("databases")]),
        ("\\d meters\n\\c power;\nselect 1", [SqlText("DESCRIBE meters"), SqlText("USE power"), SqlText("select 1")]),
        ("\\i a.sql", [ShellCommand("read", ("a.sql",))]),
        ("\\watch 2", [ShellCommand("\\watch", ("2",))]),
        ("select 1\\g", [SqlText("select 1", vertical=True)]),
        ("select '\\q'\n\\G", [SqlText("select '\\q'", vertical=True)]),
        ("", []),
        (" ;; \n; -- nothing", []),
    ],
)
def test_text_is_cut_into_pieces(text: str, pieces: list[Piece]) -> None:
    """Terminators inside of quotes and comments don't count."""
    assert split_all(text) == pieces


@pytest.mark.parametrize("text", ["select 1", "select 'a;", 'select "x;', "select `y;", "/* ; ", "select 1 /* ;"])
def test_unfinished_input_waits_for_more(text: str) -> None:
    """Enter begins a new line while a statement, a quote or a comment is open."""
    assert not is_complete(text)


@pytest.mark.parametrize("text", ["select 1;", ".help", "quit", "", "  ", "select 1\\G", "-- remark"])
def test_finished_input_runs(text: str) -> None:
    """Enter runs what is complete."""
    assert is_complete(text)


@pytest.mark.parametrize(("text", "mark"), [
    ("select 'it''s", "'"), ("select 1; select \"a", '"'), ("select `a b", "`"), ("select 1 /* why", "/*"),
    ("select count(", "("), ("select (1 + (2)", "("), ("select '(' -- (", None), ("select ')' + (", "("),
    ("select 1)", None), ("select 1", None), ("select 'a(';", None), ("", None), ("select (1)", None),
])
def test_what_is_left_open_is_told(text: str, mark: str | None) -> None:
    """Quotes and comments come before parentheses, which don't count inside of them; what has ended doesn't count."""
    assert left_open(text) == mark


STATEMENTS = st.lists(
    st.sampled_from([
        "select 1", "select ';'", "insert into t values ('a\\';b')", "select `;` -- x;\n+ 1", "/* ; */ use d",
    ])
)


@given(STATEMENTS, st.integers(1, 9))
def test_reading_in_pieces_gives_the_same_statements(statements: list[str], size: int) -> None:
    """Input that arrives bit by bit is cut as if it had come at once."""
    text = "".join(f"{statement};\n" for statement in statements)
    found: list[Piece] = []
    rest = ""
    for start in range(0, len(text), size):
        pieces, rest = split(rest + text[start : start + size])
        found += pieces
    whole, _ = split(text)
    assert [piece for piece in found if isinstance(piece, SqlText)] == whole
    assert rest.strip() == ""


def test_lines_that_cannot_end_a_statement_are_recognised() -> None:
    """Long scripts are cut only at lines that may hold an end."""
    assert not may_complete("  (1, 2, 3),\n")
    assert may_complete("  (1, 2, 3);\n")
    assert may_complete("quit\n")
    assert may_complete("source a.sql\n")
