"""The footing of the grammar: looking ahead, taking what is expected, and telling what was not; it knows no statement.

sqlglot's parser is the base. Its tokens are fetched on demand, and its errors are ours, with place and hint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any, Self, TypeVar, cast

from sqlglot import exp
from sqlglot.parser import Parser as SqlglotParser
from sqlglot.tokens import Token, TokenType

from penstock.common.errors import Position, SqlSyntaxError
from penstock.common.suggestions import alternatives, did_you_mean
from penstock.sql.dialect.literals import parse_duration, parse_integer, position
from penstock.sql.dialect.tokenizer import KEYWORDS, scan
from penstock.sql.tree.statements import Duration, Name, Unit

MAX_NESTING = 50
MAX_DURATION_TEXT = 20
MAX_NAME_BYTES = 192

NAMES = frozenset({TokenType.VAR, TokenType.IDENTIFIER})
# Tokens whose text is neither a word nor an operator.
_VALUES = frozenset({
    TokenType.STRING, TokenType.IDENTIFIER, TokenType.NUMBER, TokenType.INTERVAL, TokenType.HEX_STRING,
    TokenType.UNKNOWN, TokenType.ROWS, TokenType.SENTINEL,
})
# How many tokens behind the current one are kept at most: many objects that live make garbage collection slow.
_KEPT = 64
_NO_TOKEN = Token(TokenType.SENTINEL, "", 1, 1, 0, -1)
_Item = TypeVar("_Item")


class BaseParser(SqlglotParser):  # type: ignore[misc]
    """Walks over the tokens of one text, which may hold several statements.

    `word` is the current token if it is a word, in upper case, or an operator; else it is empty.
    """

    sql: str

    def reset(self) -> None:
        super().reset()
        self._source: Iterator[Token] = iter(())
        self.word = ""
        self.joins = 0
        self.nests = False
        self._calculates = False
        self._depth = 0
        self._operands = 0
        self._tried: list[str] = []

    def begin(self, text: str, tokens: Iterable[Token] | None = None) -> None:
        """Goes to the first token of a text."""
        self.reset()
        self.sql = text
        self._source = scan(text) if tokens is None else chain(tokens, scan(text, len(text)))
        self._index = -1
        self._advance()

    # --- moving ---

    def _advance(self, times: int = 1) -> None:
        index = self._index + times
        tokens = self._tokens
        if index > _KEPT:
            del tokens[:index - 1]
            index = 1
        self._index = index
        missing = index + 2 - len(tokens)
        if missing > 0:
            tokens += islice(self._source, missing)
        self._tried = []
        self._prev = tokens[index - 1] if index else _NO_TOKEN
        self._curr = token = tokens[index]
        self._next = tokens[index + 1]
        self.word = "" if token.token_type in _VALUES else token.text.upper()

    def _retreat(self, index: int) -> None:
        """Of sqlglot's methods those that try and go back aren't used: tokens are dropped behind the current one."""
        raise NotImplementedError

    def advance(self) -> Token:
        """Steps over the current token and returns it."""
        taken = self._curr
        self._advance()
        return taken

    def expand_rows(self) -> None:
        """Has the rows behind the word VALUES, which is the current token, be tokens like any others."""
        del self._tokens[self._index + 1:]
        self._source = scan(self.sql, self._curr.end + 1)
        self._advance(0)

    @property
    def token(self) -> Token:
        """The current token; at the end of the text it is a SENTINEL there."""
        return self._curr

    def peek(self, distance: int = 1) -> str:
        """Returns what `word` will be `distance` tokens further on."""
        token = self.token_ahead(distance)
        return "" if token.token_type in _VALUES else token.text.upper()

    def token_ahead(self, distance: int = 1) -> Token:
        """Returns the token `distance` places after the current one."""
        tokens = self._tokens
        while len(tokens) <= self._index + distance:
            tokens.append(next(self._source))
        return tokens[self._index + distance]

    @property
    def previous_end(self) -> int:
        """Where the last token taken ends."""
        return int(self._prev.end) + 1

    def enter(self, levels: int = 1) -> None:
        """Counts levels of nesting; raises SqlSyntaxError where there are too many.

        Whatever makes the parser or the planner call itself counts: parentheses, calls, signs, NOT, CASE, joins and
        sub-queries. Chains such as those of AND, + and UNION don't, since nothing calls itself over them.
        """
        if self._depth + levels > MAX_NESTING:
            raise self.fail(f"nested more than {MAX_NESTING} levels deep",
                            hint="compute a part in a sub-query, or in a stream of its own")
        self._depth += levels

    def leave(self, levels: int = 1) -> None:
        """Goes back by what `enter` has counted; after an error nothing is parsed further."""
        self._depth -= levels

    def source(self, start: int) -> str:
        """Returns the text from `start` to the end of the last token taken."""
        return self.sql[start:self._prev.end + 1]

    # --- words and operators ---

    def at(self, *words: str) -> bool:
        """Whether the next tokens are these keywords or operators."""
        if self.word != words[0]:
            self._tried.append(words[0])
            return False
        return len(words) == 1 or all(self.peek(place) == word for place, word in enumerate(words) if place)

    def at_any(self, *words: str) -> bool:
        """Whether the next token is one of these keywords or operators."""
        if self.word in words:
            return True
        self._tried += words
        return False

    def at_type(self, kind: TokenType) -> bool:
        """Whether the next token is of this type."""
        return self._curr.token_type is kind

    def take(self, *words: str) -> bool:
        """Steps over these keywords or operators if they come next; tells whether they did."""
        if not self.at(*words):
            return False
        self._advance(len(words))
        return True

    def take_any(self, *words: str) -> str | None:
        """Steps over one of these keywords or operators; returns it, or None."""
        if not self.at_any(*words):
            return None
        word = self.word
        self._advance()
        return word

    def one_of(self, *words: str, behind: str = "") -> str:
        """Steps over one of these keywords; returns it in lower case. Raises SqlSyntaxError."""
        word = self.take_any(*words)
        if word is None:
            raise self.fail(f"{alternatives(words)} is expected{behind and f' behind {behind}'}")
        return word.lower()

    def expect(self, *words: str) -> None:
        """Steps over these keywords or operators. Raises SqlSyntaxError."""
        for word in words:
            if not self.take(word):
                raise self.fail(f"{word if word[0].isalpha() else repr(word)} is expected")

    def note(self, *words: str) -> None:
        """Keeps what was tried at this token: it may be what a misspelt word was meant to be."""
        self._tried += words

    @property
    def at_word(self) -> bool:
        """Whether the next token is a word, reserved or not."""
        return self.word.isidentifier()

    @property
    def at_end(self) -> bool:
        """Whether the statement ends here."""
        return not self._curr or self._curr.token_type is TokenType.SEMICOLON

    def take_if_not_exists(self) -> bool:
        """Steps over IF NOT EXISTS if it follows."""
        if not self.take("IF"):
            return False
        self.expect("NOT", "EXISTS")
        return True

    def take_if_exists(self) -> bool:
        """Steps over IF EXISTS if it follows."""
        if not self.take("IF"):
            return False
        self.expect("EXISTS")
        return True

    # --- lists ---

    def csv(self, parse_item: Callable[[], _Item], end: str = "") -> tuple[_Item, ...]:
        """Parses `item, ...` with at least one item; a comma may stand before the word `end`, too."""
        items = [parse_item()]
        while self._curr.token_type is TokenType.COMMA:
            self._advance()
            if end and self.word == end:
                break
            items.append(parse_item())
        return tuple(items)

    def wrapped_csv(self, parse_item: Callable[[], _Item]) -> tuple[_Item, ...]:
        """Parses `(item, ...)` with at least one item. Raises SqlSyntaxError."""
        self.expect("(")
        items = self.csv(parse_item)
        self.expect(")")
        return items

    def wrapped(self, parse_item: Callable[[], _Item]) -> _Item:
        """Parses `(item)`. Raises SqlSyntaxError."""
        self.expect("(")
        item = parse_item()
        self.expect(")")
        return item

    # --- options ---

    def option(
        self, readers: Mapping[str, Callable[[Self], Any]], given: dict[str, Any], expected: str = "",
        hint: str | None = None,
    ) -> bool:
        """Puts the option that comes next into `given`, with its value; tells whether there is one.

        `readers`: by the word of each, what reads its value. `expected` names what else is an error. Raises
        SqlSyntaxError, also for an option that is given.
        """
        token = self.token
        word = self.take_any(*readers)
        if word is None:
            if expected:
                raise self.fail(f"{expected} is expected", hint=self.guess() or hint)
            return False
        if word in given:
            raise self.fail(f"{word} is given twice", token)
        given[word] = readers[word](self)
        return True

    def options(self, readers: Mapping[str, Callable[[Self], Any]], expected: str = "") -> dict[str, Any]:
        """Parses options in any order, as `option` does: up to the end of the statement if one is `expected`."""
        given: dict[str, Any] = {}
        while not (expected and self.at_end) and self.option(readers, given, expected):
            pass
        return given

    # --- places ---

    def mark(self, node: exp.Expression, start: int) -> exp.Expression:
        """Notes in a node that it was parsed from `start` up to here."""
        meta = node.meta
        meta["offset"] = start
        meta["end"] = self._prev.end + 1
        return node

    # --- what a trigger gives ---

    @contextmanager
    def calculating(self) -> Iterator[None]:
        """Lets `%%trows` and the like stand for what a trigger gives."""
        self._calculates = True
        yield
        self._calculates = False

    def trigger_word(self) -> str | None:
        """Steps over `%%` and a word or number behind it, if that comes next, and returns these in lower case."""
        if self.word != "%" or self.peek() != "%":
            return None
        if not self._calculates:
            raise self.fail("%% is for queries of streams with a trigger of their own")
        self._advance(2)
        return str(self.advance().text).lower()

    # --- names and literals ---

    def at_name(self) -> bool:
        """Whether the next token can be a name."""
        return self._curr.token_type in NAMES

    def name(self, what: str) -> str:
        """Takes a name, folded to lower case unless it is back-quoted. `what` is for the error: 'a table name'."""
        if not self.at_name():
            raise self.fail(f"{what} is expected", hint=self._name_hint())
        token = self.advance()
        if token.token_type is TokenType.VAR:
            name = str(token.text.lower())
        else:
            name = str(token.text)
            if not name.strip() or not name.isprintable():
                raise self.fail(f"{what} must not be empty, blank or unprintable", token)
        if len(name.encode()) > MAX_NAME_BYTES:
            raise self.fail(f"{what} has at most {MAX_NAME_BYTES} bytes", token)
        return name

    def _name_hint(self) -> str | None:
        if self.at_type(TokenType.STRING):
            return "quotes make a string; write names plain or in back-quotes"
        if self.word in KEYWORDS:
            return f"{self.word} is a keyword; to use it as a name, write `{self.word.lower()}`"
        return None

    def object_name(self, what: str) -> Name:
        """Takes `name` or `database.name`."""
        offset = self.token.start
        first = self.name(what)
        if self.take("."):
            return Name(self.name(what), first, offset)
        return Name(first, None, offset)

    def stream_name(self) -> str:
        """Takes the name of a stream; the database that may stand before it tells no streams apart."""
        return self.object_name("a stream name").name

    def column_names(self) -> tuple[str, ...]:
        """Takes `(name, ...)`: names of columns, each once."""
        token = self.token
        columns = self.wrapped_csv(lambda: self.name("a column name"))
        if len(set(columns)) < len(columns):
            repeated = next(name for index, name in enumerate(columns) if name in columns[:index])
            raise self.fail(f"column {repeated} is given twice", token)
        return columns

    def string(self, what: str) -> str:
        """Takes a quoted string and returns its value."""
        if not self.at_type(TokenType.STRING):
            raise self.fail(f"{what} is expected, in quotes")
        return str(self.advance().text)

    def integer(self, what: str, *, minimum: int = 0, maximum: int = 2**63 - 1, hint: str | None = None) -> int:
        """Takes an integer within the limits; a sign is understood, so that the error names the limit."""
        start = self.token
        negative = self.take("-")
        if not negative:
            self.take("+")
        if not self.at_type(TokenType.NUMBER):
            raise self.fail(f"{what} is expected, an integer")
        token = self.advance()
        try:
            value = parse_integer(token.text)
        except ValueError:
            raise self.fail(f"{what} must be an integer", token) from None
        value = -value if negative else value
        if not minimum <= value <= maximum:
            raise self.fail(f"{what} must be between {minimum} and {maximum}", start, hint=hint, end=token.end + 1)
        return value

    def duration(self, what: str, *, signed: bool = False) -> Duration:
        """Takes a duration: `10s`, `'10s'` or a bare integer; a minus only if `signed`."""
        start = self.token
        negative = signed and self.take("-")
        token = self.token
        duration: Duration | None = None
        text = token.text
        if token.token_type is TokenType.INTERVAL and len(text) <= MAX_DURATION_TEXT:
            duration = Duration(int(text[:-1]), cast(Unit, text[-1].lower()))
        elif token.token_type is TokenType.NUMBER and text.isdigit() and len(text) <= MAX_DURATION_TEXT:
            duration = Duration(int(text), "")
        elif token.token_type is TokenType.STRING:
            duration = parse_duration(text)
            if duration is not None and duration.value < 0 and not signed:
                duration = None
        if duration is None or duration.value >= 2**63:
            raise self.fail(f"{what} is expected, such as 10s", hint="units are b u a s m h d w n y")
        self.advance()
        if negative:
            duration = Duration(-duration.value, duration.unit)
        if abs(duration.value) >= 2**63:
            raise self.fail(f"{what} is too long", start)
        return duration

    # --- errors ---

    def place(self, token: Token) -> Position:
        """Returns where a token is."""
        return position(self.sql, token.start, token.end + 1 - token.start)

    def fail(self, message: str, token: Token | None = None, *, hint: str | None = None, end: int | None = None
             ) -> SqlSyntaxError:
        """Returns the error to raise, at the current token if none is given."""
        token = token or self._curr
        if hint is None and token is self._curr:
            hint = self.guess()
        if not token:
            return SqlSyntaxError(f"the statement ends too early: {message}", hint=hint,
                                  position=position(self.sql, token.start, 0))
        if token.token_type is TokenType.UNKNOWN:
            message, hint = self._bad_token(token), None
        place = position(self.sql, token.start, (end or token.end + 1) - token.start)
        return SqlSyntaxError(f"syntax error: {message}", hint=hint, position=place)

    def raise_error(self, message: str, token: Token | None = None) -> None:
        """What sqlglot's own methods call. Raises SqlSyntaxError."""
        raise self.fail(message, token)

    def guess(self) -> str | None:
        """Returns a hint if the current word looks like a misspelt keyword that was tried here."""
        if not self.at_type(TokenType.VAR):
            return None
        return None if self.word in self._tried else did_you_mean(self.word, self._tried)

    @staticmethod
    def _bad_token(token: Token) -> str:
        if token.text in ("'", '"', "`"):
            return "a quote is opened, but never closed"
        if token.text == "/*":
            return "a comment is opened, but never closed"
        if token.text[0].isdigit():
            return "neither a number, nor a duration, nor a name: names that begin with a digit need back-quotes"
        return "this character has no meaning here"
