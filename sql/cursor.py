"""A cursor over the tokens of a text: looking ahead, taking what is expected, and telling what was not.

It knows which words are keywords, but no grammar.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from penstock.common.errors import SqlSyntaxError
from penstock.sql.lexer import Token, TokenKind, next_token, skip_rows
from penstock.sql.literals import parse_duration, parse_integer, position, unescape
from penstock.sql.statements import Duration, Name, Unit

# Words that are never names unless back-quoted: each can follow, or be, a place where a name may stand.
RESERVED = frozenset({
    "ALL", "ALTER", "AND", "ANALYZE", "AS", "ASC", "BETWEEN", "BIGINT", "BINARY", "BOOL", "BY", "CASE", "CAST",
    "CONTAINS", "COUNT_WINDOW", "CREATE", "DATABASE", "DECIMAL", "DELETE", "DESC", "DESCRIBE", "DISTINCT",
    "DOUBLE", "DROP", "ELSE", "END", "EVENT_WINDOW", "EVERY", "EXISTS", "EXPLAIN", "FALSE", "FILL", "FLOAT",
    "FROM", "FULL", "GEOMETRY", "GROUP", "HAVING", "IF", "IN", "INNER", "INSERT", "INT", "INTEGER", "INTERVAL",
    "INTO", "IS", "JLIMIT", "JOIN", "JSON", "LEFT", "LIKE", "LIMIT", "MATCH", "NCHAR", "NMATCH", "NOT", "NOW",
    "NULL", "ON", "OR", "ORDER", "OUTER", "PARTITION", "RANGE", "RIGHT", "SELECT", "SESSION", "SET", "SHOW",
    "SLIDING", "SLIMIT", "SMALLINT", "SOFFSET", "STABLE", "STATE_WINDOW", "STREAM", "SUBTABLE", "TABLE", "TAG",
    "TAGS", "THEN", "TIMESTAMP", "TINYINT", "TODAY", "TRIGGER", "TRUE", "UNION", "UNSIGNED", "USING", "VALUES",
    "VARBINARY", "VARCHAR", "WATERMARK", "WHEN", "WHERE", "WINDOW_OFFSET",
})

# Words that are names elsewhere, but after an expression or a table they continue the statement.
NOT_AN_ALIAS = RESERVED | frozenset({
    "ANOMALY_WINDOW", "ANTI", "ASOF", "FILE", "NOTIFY", "NULLS", "OFFSET", "SEMI", "TRUE_FOR", "WINDOW",
})

MAX_NESTING = 50
MAX_DURATION_TEXT = 20
MAX_NAME_BYTES = 192


class Cursor:
    """Walks over the tokens of one text, which may hold several statements."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.token = next_token(text, 0)
        self.previous_end = 0
        self.joins = 0
        self._ahead: list[Token] = []
        self._depth = 0
        self._operands = 0
        self._tried: list[str] = []
        self._tried_at = 0

    # --- moving ---

    def peek(self, distance: int = 1) -> Token:
        """Returns the token `distance` places after the current one."""
        while len(self._ahead) < distance:
            last = self._ahead[-1] if self._ahead else self.token
            self._ahead.append(next_token(self.text, last.end))
        return self._ahead[distance - 1]

    def advance(self) -> Token:
        """Steps over the current token and returns it."""
        taken = self.token
        self.previous_end = taken.end
        self.token = self._ahead.pop(0) if self._ahead else next_token(self.text, taken.end)
        return taken

    def skip_rows(self) -> tuple[str, int]:
        """Steps over `(...)[,](...)...` without making tokens; returns that text and where it starts."""
        start = self.token.start
        end = skip_rows(self.text, start)
        if end == start:
            raise self.fail("a row in parentheses is expected, closed and with closed quotes")
        self._ahead.clear()
        self.previous_end = end
        self.token = next_token(self.text, end)
        return self.text[start:end], start

    @contextmanager
    def nested(self, levels: int = 1) -> Iterator[None]:
        """Counts levels of nesting; raises SqlSyntaxError where there are too many.

        Whatever makes the parser or the planner call itself counts: parentheses, calls, signs, NOT, CASE, joins and
        sub-queries. Chains such as those of AND, + and UNION don't, since nothing calls itself over them.
        """
        if self._depth + levels > MAX_NESTING:
            raise self.fail(f"nested more than {MAX_NESTING} levels deep",
                            hint="compute a part in a sub-query, or in a stream of its own")
        self._depth += levels
        try:
            yield
        finally:
            self._depth -= levels

    @contextmanager
    def operand(self) -> Iterator[bool]:
        """Gives whether this operand of an expression is inside of no other."""
        self._operands += 1
        try:
            yield self._operands == 1
        finally:
            self._operands -= 1

    def source(self, start: int) -> str:
        """Returns the text from `start` to the end of the last token taken."""
        return self.text[start:self.previous_end]

    # --- keywords and operators ---

    def at(self, *words: str) -> bool:
        """Whether the next tokens are these keywords."""
        if self.token.word != words[0] or self.token.kind is not TokenKind.WORD:
            if self._tried_at != self.token.start:
                self._tried_at = self.token.start
                self._tried = []
            self._tried.append(words[0])
            return False
        return all(
            self.peek(i).word == word and self.peek(i).kind is TokenKind.WORD for i, word in enumerate(words) if i
        )

    def at_any(self, *words: str) -> bool:
        """Whether the next token is one of these keywords."""
        return any(self.at(word) for word in words)

    def take(self, *words: str) -> bool:
        """Steps over these keywords if they come next; tells whether they did."""
        if not self.at(*words):
            return False
        for _ in words:
            self.advance()
        return True

    def take_any(self, *words: str) -> str | None:
        """Steps over one of these keywords; returns it, or None."""
        return self.advance().word if self.at_any(*words) else None

    def expect(self, *words: str) -> None:
        """Steps over these keywords. Raises SqlSyntaxError."""
        for word in words:
            if not self.take(word):
                raise self.fail(f"{word} is expected")

    def at_operator(self, operator: str) -> bool:
        return self.token.raw == operator and self.token.kind is TokenKind.OPERATOR

    def take_operator(self, operator: str) -> bool:
        if self.at_operator(operator):
            self.advance()
            return True
        return False

    def expect_operator(self, operator: str) -> None:
        if not self.take_operator(operator):
            raise self.fail(f"{operator!r} is expected")

    @property
    def at_end(self) -> bool:
        """Whether the statement ends here."""
        return self.token.kind is TokenKind.END or self.at_operator(";")

    # --- names and literals ---

    def at_name(self) -> bool:
        """Whether the next token can be a name."""
        token = self.token
        return token.kind is TokenKind.QUOTED or (token.kind is TokenKind.WORD and token.word not in RESERVED)

    def name(self, what: str) -> str:
        """Takes a name, folded to lower case unless it is back-quoted. `what` is for the error: 'a table name'."""
        if not self.at_name():
            raise self.fail(f"{what} is expected", hint=self._name_hint())
        token = self.advance()
        if token.kind is TokenKind.WORD:
            name = token.raw.lower()
        else:
            name = token.raw[1:-1].replace("``", "`")
            if not name.strip() or not name.isprintable():
                raise self.fail(f"{what} must not be empty, blank or unprintable", token)
        if len(name.encode()) > MAX_NAME_BYTES:
            raise self.fail(f"{what} has at most {MAX_NAME_BYTES} bytes", token)
        return name

    def _name_hint(self) -> str | None:
        if self.token.kind is TokenKind.STRING:
            return "quotes make a string; write names plain or in back-quotes"
        if self.token.kind is TokenKind.WORD:
            return f"{self.token.word} is a keyword; to use it as a name, write `{self.token.raw.lower()}`"
        return None

    def object_name(self, what: str) -> Name:
        """Takes `name` or `database.name`."""
        offset = self.token.start
        first = self.name(what)
        if self.take_operator("."):
            return Name(self.name(what), first, offset)
        return Name(first, None, offset)

    def string(self, what: str) -> str:
        """Takes a quoted string and returns its value."""
        if self.token.kind is not TokenKind.STRING:
            raise self.fail(f"{what} is expected, in quotes")
        return unescape(self.advance().raw)

    def integer(self, what: str, *, minimum: int = 0, maximum: int = 2**63 - 1) -> int:
        """Takes an integer within the limits; a sign is understood, so that the error names the limit."""
        start = self.token
        negative = self.take_operator("-")
        if not negative:
            self.take_operator("+")
        if self.token.kind is not TokenKind.NUMBER:
            raise self.fail(f"{what} is expected, an integer")
        token = self.advance()
        try:
            value = parse_integer(token.raw)
        except ValueError:
            raise self.fail(f"{what} must be an integer", token) from None
        value = -value if negative else value
        if not minimum <= value <= maximum:
            raise self.fail(f"{what} must be between {minimum} and {maximum}", start, end=token.end)
        return value

    def duration(self, what: str, *, signed: bool = False) -> Duration:
        """Takes a duration: `10s`, `'10s'` or a bare integer; a minus only if `signed`."""
        start = self.token
        negative = signed and self.take_operator("-")
        token = self.token
        duration: Duration | None = None
        if token.kind is TokenKind.DURATION and len(token.raw) <= MAX_DURATION_TEXT:
            duration = Duration(int(token.raw[:-1]), cast(Unit, token.raw[-1].lower()))
        elif token.kind is TokenKind.NUMBER and token.raw.isdigit() and len(token.raw) <= MAX_DURATION_TEXT:
            duration = Duration(int(token.raw), "")
        elif token.kind is TokenKind.STRING:
            duration = parse_duration(unescape(token.raw))
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

    def fail(self, message: str, token: Token | None = None, *, hint: str | None = None, end: int | None = None
             ) -> SqlSyntaxError:
        """Returns the error to raise, at the current token if none is given."""
        token = token or self.token
        if hint is None and token is self.token:
            hint = self.guess()
        if token.kind is TokenKind.END:
            return SqlSyntaxError(f"the statement ends too early: {message}", hint=hint,
                                  position=position(self.text, token.start, 0))
        if token.kind is TokenKind.BAD:
            message, hint = self._bad_token(token), None
        place = position(self.text, token.start, (end or token.end) - token.start)
        return SqlSyntaxError(f"syntax error: {message}", hint=hint, position=place)

    def guess(self) -> str | None:
        """Returns a hint if the current word looks like a misspelt keyword that was tried here."""
        token = self.token
        if token.kind is not TokenKind.WORD or self._tried_at != token.start or token.word in RESERVED:
            return None
        close = difflib.get_close_matches(token.word, self._tried, n=1, cutoff=0.7)
        return f"did you mean {close[0]}?" if close and close[0] != token.word else None

    @staticmethod
    def _bad_token(token: Token) -> str:
        if token.raw in ("'", '"', "`"):
            return "a quote is opened, but never closed"
        if token.raw == "/*":
            return "a comment is opened, but never closed"
        if token.raw[0].isdigit():
            return "neither a number, nor a duration, nor a name: names that begin with a digit need back-quotes"
        return "this character has no meaning here"
