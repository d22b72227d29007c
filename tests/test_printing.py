"""Statements print: what is printed is read back as an equal tree."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.golden_runner import read_blocks

from penstock.common.errors import PenstockError
from penstock.sql.generator import print_sql
from penstock.sql.parser import parse, parse_one

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*/*.txt"))


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
