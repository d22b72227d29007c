"""The pages of the documentation as readers see them: their sentences, and their code blocks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from kits.basics.places import ROOT
from markdown_it import MarkdownIt
from markdown_it.token import Token

#: The README, then all pages of docs/ by name.
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

#: A sentence of more words is a long one.
LONG = 25

_MARKDOWN = MarkdownIt("commonmark").enable("table")
#: What ends a sentence, and what may begin the next one; an ellipsis ends none.
_END = re.compile(r"""(?<!\.)[.!?]["')\]]*\s+(?=[^a-z\s])""")
_HIDDEN = re.compile(r"<!-- (?P<info>(?:sql|python|bash|\w+ file: \S+))\n(?P<text>.*?)-->\n?", re.DOTALL)
_WORD = re.compile(r"\S*\w\S*")


@dataclass(frozen=True, slots=True)
class Block:
    """A code block: what stands behind its fence ("" if it is indented), its text, and its line, from 1."""

    info: str
    text: str
    line: int


@dataclass(frozen=True, slots=True)
class Reading:
    """How a page reads: its sentences, their words, and how many of the sentences are long."""

    sentences: int
    words: int
    long: int

    @property
    def mean(self) -> float:
        return self.words / max(self.sentences, 1)

    @property
    def share(self) -> float:
        """The share of sentences that are long, 0 to 1."""
        return self.long / max(self.sentences, 1)

    def __add__(self, other: Reading) -> Reading:
        return Reading(self.sentences + other.sentences, self.words + other.words, self.long + other.long)


def blocks(page: str) -> list[Block]:
    """Returns the code blocks of a page in their order, those in comments too, whose first line is `<!-- LANGUAGE`."""
    found = []
    for token in _MARKDOWN.parse(page):
        line = token.map[0] + 1 if token.map else 0
        if token.type in ("fence", "code_block"):
            found.append(Block(token.info.strip(), token.content, line))
        elif token.type == "html_block" and (hidden := _HIDDEN.fullmatch(token.content)) is not None:
            found.append(Block(hidden["info"], hidden["text"], line))
    return found


def sentences(page: str) -> list[str]:
    """Returns the sentences of paragraphs and lists, not of headings, tables and code. Code within one is a word."""
    return [sentence for text in _paragraphs(_MARKDOWN.parse(page)) for sentence in _split(text)]


def words(sentence: str) -> int:
    """Returns how many words a sentence has; signs by themselves are none."""
    return len(_WORD.findall(sentence))


def reading(page: str) -> Reading:
    """Returns how a page reads."""
    lengths = [words(sentence) for sentence in sentences(page)]
    return Reading(len(lengths), sum(lengths), sum(length > LONG for length in lengths))


def _paragraphs(tokens: list[Token]) -> Iterator[str]:
    skipped = 0
    for token in tokens:
        if token.type in ("table_open", "heading_open", "table_close", "heading_close"):
            skipped += token.nesting
        elif token.type == "inline" and not skipped:
            yield _plain(token.children or [])


def _plain(tokens: list[Token]) -> str:
    """Returns what is read of a paragraph. Links begin with a capital: the name of a page may begin a sentence."""
    said = {"code_inline": "Code", "softbreak": " ", "hardbreak": " "}
    parts = []
    for before, token in pairwise([Token("", "", 0), *tokens]):
        text = said.get(token.type, token.content if token.type == "text" else "")
        parts.append(text[:1].upper() + text[1:] if before.type == "link_open" else text)
    return "".join(parts)


def _split(text: str) -> list[str]:
    return [sentence for sentence in _END.split(text) if words(sentence)]
