"""What the documentation shows is so: its code blocks are run, and print what stands there."""

from __future__ import annotations

from pathlib import Path

import pytest
from kits.pages.examples import examples, missing_tests, play
from kits.pages.pages import PAGES

#: How many code blocks of all pages are not run, each with its reason; `python -m programs.documentation` lists them.
NOT_RUN = 35


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_the_examples_of_a_page_work(path: Path, tmp_path: Path) -> None:
    """They run in their order, and print what the page says; those that don't say why, or who runs them."""
    play(path, tmp_path)


def test_those_not_run_are_few() -> None:
    """Whoever adds one that can't be run, raises the number."""
    found = [f"{path.name}:{example.block.line}: {example.value}" for path in PAGES
             for example in examples(path.read_text("utf-8")) if example.option == "no-run"]
    assert len(found) <= NOT_RUN, found


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_tests_that_run_blocks_are_there(path: Path) -> None:
    """What a page says is run by a test of its own names one that exists."""
    assert list(missing_tests(path.read_text("utf-8"))) == []
