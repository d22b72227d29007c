"""Statements print: what is printed is read back as an equal tree."""

from __future__ import annotations

from pathlib import Path

import pytest
from kits.basics.golden_runner import read_blocks
from kits.basics.places import TESTS

from penstock.common.errors import PenstockError
from penstock.mnode.ddl.database_options import effective_options, resolve_options
from penstock.sql.dialect.create_statements import database_statement, table_statement
from penstock.sql.dialect.generator import print_sql
from penstock.sql.dialect.parser import parse, parse_one
from penstock.sql.dialect.tokenizer import KEYWORDS
from penstock.sql.schema import Column, Table, TagValue
from penstock.sql.tree.statements import CreateChildTables, CreateDatabase, CreateTable
from penstock.sql.types import DataType, Kind, timestamp

GOLDEN = sorted((TESTS / "golden").glob("*/*.txt"))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_what_is_printed_is_read_back(path: Path) -> None:
    """For every statement of the golden scripts; and printing what was read back says the same again."""
    for block in read_blocks(path):
        try:
            statements = parse(block.statement)
        except PenstockError:
            continue
        for statement in statements:
            text = print_sql(statement)
            again = parse_one(text)
            assert again == statement, text
            assert print_sql(again) == text


@pytest.mark.parametrize("name", ["m", "Upper", "two words", "back`quote", "select", "tags", "primary", "comment"])
def test_what_makes_a_table_is_read_back(name: str) -> None:
    """What SHOW CREATE TABLE prints of a super table is its statement: names, types, keys, comments."""
    columns = (Column("ts", timestamp("us"), "c0"), Column("k", DataType(Kind.VARCHAR, 8), "c1", primary_key=True),
               Column(name, DataType(Kind.DECIMAL, digits=10, scale=2), "c2", comment="it's\n`this`"),
               *(Column(word.lower(), DataType(Kind.UBIGINT), word) for word in sorted(KEYWORDS) if word != "TBNAME"))
    tags = (Column("g", DataType(Kind.NCHAR, 4), "t0"),)
    statement = table_statement(Table(1, "d", name, "super", columns, tags, comment="all"))
    assert isinstance(statement, CreateTable)
    assert statement.must_be_super
    assert parse_one(print_sql(statement)) == statement


def test_what_makes_a_child_table_is_read_back() -> None:
    """Tag values of all kinds are those of the statement again."""
    values: tuple[TagValue, ...] = (
        None, True, False, -5, 2**64 - 1, 1.5, -1e-7, 1e300, "it's \\ `x`\n", b"\x00\xff", float("nan"), "")
    tags = tuple(Column(f"t{place}", DataType(Kind.VARCHAR, 8), f"t{place}") for place in range(len(values)))
    table = Table(1, "d", "c", "child", (), tags, super_name="m", tag_values=values)
    statement = table_statement(table)
    assert isinstance(statement, CreateChildTables)
    assert parse_one(print_sql(statement)) == statement


def test_what_makes_a_database_is_read_back() -> None:
    """Every option that can be given comes back with its value."""
    text = ("CREATE DATABASE d VGROUPS 3 PRECISION 'us' KEEP 20d,30d DURATION 5 STRICT '1' WAL_RETENTION_PERIOD -1 "
            "KEEP_TIME_OFFSET 3 CACHEMODEL 'both'")
    given = parse_one(text)
    assert isinstance(given, CreateDatabase)
    statement = database_statement("d", effective_options(resolve_options(given.options)))
    again = parse_one(print_sql(statement))
    assert again == statement
    assert isinstance(again, CreateDatabase)
    assert effective_options(resolve_options(again.options)) == effective_options(resolve_options(given.options))
