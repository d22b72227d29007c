"""The documentation can be read: few sentences are long, on each page and on all together."""

from __future__ import annotations

from pathlib import Path

import pytest
from kits.pages.pages import LONG, PAGES, Reading, reading, sentences, words

#: Which share of the sentences of a page, and of all pages, may have more than `LONG` words, at most.
LONG_OF_PAGE, LONG_OF_ALL = 0.05, 0.01
#: A page with fewer sentences may have one that is long.
_FEW = 10


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_few_sentences_of_a_page_are_long(path: Path) -> None:
    """Whoever reads it needn't begin a sentence again."""
    page = path.read_text("utf-8")
    found = reading(page)
    long = [sentence for sentence in sentences(page) if words(sentence) > LONG]
    allowed = LONG_OF_PAGE * found.sentences if found.sentences >= _FEW else 1
    assert found.long <= allowed, "\n".join(long)


def test_few_sentences_of_all_are_long() -> None:
    """No page pays for another one's."""
    found = sum((reading(path.read_text("utf-8")) for path in PAGES), Reading(0, 0, 0))
    assert found.share <= LONG_OF_ALL


def test_sentences_are_those_of_prose() -> None:
    """Tables, headings and code are none, code within one is a word, and an ellipsis ends none."""
    page = "# A heading. With two.\n\nOne `a b. C`, two. Three\nfour ... Five (six.) 7? [a.md](a.md) is.\n\n" \
           "- eight. `Nine` ten\n\n| a. B |\n|---|\n| c. D |\n\n```sql\nSELECT 1. FROM x\n```\n"
    assert sentences(page) == ["One Code, two", "Three four ... Five (six", "7", "A.md is.", "eight", "Code ten"]
    assert [words(sentence) for sentence in sentences(page)] == [3, 4, 1, 2, 1, 2]
    assert reading(page) == Reading(6, 13, 0)
