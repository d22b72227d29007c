"""Cuts SQL text into sqlglot's tokens; it knows which words are reserved, but no grammar.

sqlglot's own scanner reads a text character by character, whole, and refuses it whole. This one makes tokens on demand,
so that what is wrong is told at its place, nothing behind it costs anything, and the rows of an INSERT stay text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import dropwhile, islice, takewhile

from sqlglot.tokens import Token, TokenType
from sqlglot.tokens import Tokenizer as SqlglotTokenizer

from penstock.common.errors import LimitExceededError
from penstock.sql.dialect.literals import position, unescape
from penstock.sql.tree.expression_nodes import plain_name, quote_identifier

# Words that are never names unless back-quoted: each can follow, or be, a place where a name may stand.
_RESERVED = (
    "ALL", "ALTER", "AND", "ANALYZE", "AS", "ASC", "BETWEEN", "BIGINT", "BINARY", "BOOL", "BY", "CASE", "CAST",
    "CONTAINS", "COUNT_WINDOW", "CREATE", "DATABASE", "DECIMAL", "DELETE", "DESC", "DESCRIBE", "DISTINCT",
    "DOUBLE", "DROP", "ELSE", "END", "EVENT_WINDOW", "EVERY", "EXISTS", "EXPLAIN", "FALSE", "FILL", "FLOAT",
    "FROM", "FULL", "GEOMETRY", "GROUP", "HAVING", "IF", "IN", "INNER", "INSERT", "INT", "INTEGER", "INTERVAL",
    "INTO", "IS", "JLIMIT", "JOIN", "JSON", "LEFT", "LIKE", "LIMIT", "MATCH", "NCHAR", "NMATCH", "NOT", "NOW",
    "NULL", "ON", "OR", "ORDER", "OUTER", "PARTITION", "RIGHT", "SELECT", "SESSION", "SET", "SHOW",
    "SLIDING", "SLIMIT", "SMALLINT", "SOFFSET", "STABLE", "STATE_WINDOW", "STREAM", "SUBTABLE", "TABLE", "TAG",
    "TAGS", "THEN", "TIMESTAMP", "TINYINT", "TODAY", "TRIGGER", "TRUE", "UNION", "UNSIGNED", "USING", "VALUES",
    "VARBINARY", "VARCHAR", "WATERMARK", "WHEN", "WHERE", "WINDOW_OFFSET",
)
# What sqlglot has no type of its own for. A duration such as `10s` is an INTERVAL, so the word INTERVAL isn't.
_PLAIN_WORD = TokenType.COMMAND
_SELECT = re.compile("select", re.IGNORECASE)
KEYWORDS: dict[str, TokenType] = {
    word: TokenType.__members__.get(word, _PLAIN_WORD) for word in _RESERVED if word != "INTERVAL"
} | {"INTERVAL": _PLAIN_WORD}

# Words that are names elsewhere, but after an expression or a table they continue the statement.
NOT_AN_ALIAS = frozenset(KEYWORDS) | frozenset({
    "ANOMALY_WINDOW", "ANTI", "ASOF", "CROSS", "EXCEPT", "FETCH", "FILE", "INTERSECT", "NATURAL", "NOTIFY",
    "OFFSET", "OUTPUT_SUBTABLE", "POSITIONAL", "QUALIFY", "RANGE", "SEMI", "STREAM_OPTIONS", "TRUE_FOR", "WINDOW",
})

OPERATORS: dict[str, TokenType] = {
    "(": TokenType.L_PAREN, ")": TokenType.R_PAREN, ",": TokenType.COMMA, ".": TokenType.DOT, ";": TokenType.SEMICOLON,
    "+": TokenType.PLUS, "-": TokenType.DASH, "*": TokenType.STAR, "/": TokenType.SLASH, "%": TokenType.MOD,
    "&": TokenType.AMP, "|": TokenType.PIPE, "=": TokenType.EQ, "==": TokenType.EQ, "<>": TokenType.NEQ,
    "!=": TokenType.NEQ, "<": TokenType.LT, "<=": TokenType.LTE, ">": TokenType.GT, ">=": TokenType.GTE,
    "->": TokenType.ARROW, "->>": TokenType.DARROW, ">>": TokenType.EXPORT, "<<": TokenType.LT_AT,
    "||": TokenType.DPIPE, "::": TokenType.DCOLON, ":": TokenType.COLON, "//": TokenType.DIV, "**": TokenType.DSTAR,
    "^": TokenType.CARET, "~": TokenType.TILDE, "!~": TokenType.IRLIKE, "[": TokenType.L_BRACKET,
    "]": TokenType.R_BRACKET, "{": TokenType.L_BRACE, "}": TokenType.R_BRACE,
}

_SINGLE = r"'(?:[^'\\]++|\\.|'')*+'"
_DOUBLE = r'"(?:[^"\\]++|\\.|"")*+"'
_COMMENT = r"--[^\n]*+|/\*(?:[^*]++|\*(?!/))*+\*/"
_SKIP = rf"(?:\s++|{_COMMENT})*+"
_SKIPPED = re.compile(_SKIP)
_TOKEN = re.compile(
    rf"{_SKIP}(?:"
    r"([xX]'[^'\n]*+')"
    r"|([A-Za-z_][A-Za-z0-9_]*+)"
    r"|((?:0[xX][0-9a-fA-F]++|0[bB][01]++|(?:[0-9]++(?:\.[0-9]*+)?+|\.[0-9]++)(?:[eE][-+]?+[0-9]++)?+)"
    r"(?![A-Za-z0-9_]))"
    r"|([0-9]++[buasmhdwnyBUASMHDWNY](?![A-Za-z0-9_]))"
    rf"|({_SINGLE}|{_DOUBLE})"
    r"|(`(?:[^`]++|``)*+`)"
    r"|(->>?|>=|<=|<>|!=|!~|==|>>|<<|\|\||::|//(?!\*)|/(?!\*)|\*\*|[-+*%&|=<>(),.;:^~\[\]{}])"
    r"|(/\*|[0-9]++[.A-Za-z0-9_]*+|.)"
    r"|(\Z))",
    re.DOTALL,
)
# The groups of _TOKEN. Bad is what no token begins with.
_HEX_STRING, _WORD, _NUMBER, _DURATION, _STRING, _QUOTED, _OPERATOR, _BAD, _END = range(1, 10)

_NO_COMMENTS: list[str] = []

# One group of parentheses: anything but quotes, brackets and comments, or those, one level deep. The plain form
# comes first since it is what nearly all rows are, and the regex engine then copies no more than one set of bytes.
_INNER = rf"[^()'\"/\\-]++|-(?!-)|/(?!\*)|{_SINGLE}|{_DOUBLE}|{_COMMENT}"
_ROWS = re.compile(
    rf"(?:(?:\s++|,|{_COMMENT})*+\((?:{_INNER}|\((?:{_INNER}|\((?:{_INNER})*+\))*+\))*+\))*+", re.DOTALL
)


# What may hold a double quote that begins no name, or a name in double quotes.
_QUOTES = re.compile(rf"{_SINGLE}|`(?:[^`]++|``)*+`|{_COMMENT}|(?P<name>\"(?:[^\"]++|\"\")*+\")", re.DOTALL)


class Tokenizer(SqlglotTokenizer):  # type: ignore[misc]
    """The tokens of the dialect. `start` and `end` are the offsets of their first and last character.

    A VAR is a word that may be a name, and other words have the types of KEYWORDS. An IDENTIFIER is a back-quoted name,
    a NUMBER may be hexadecimal or binary, an INTERVAL is a duration such as `10s`, an UNKNOWN is no token. What follows
    the word VALUES in parentheses is one token ROWS. The text of strings and names is without quotes and escapes.
    """

    KEYWORDS = KEYWORDS
    SINGLE_TOKENS = {text: kind for text, kind in OPERATORS.items() if len(text) == 1}  # noqa: RUF012
    QUOTES = ["'", '"']  # noqa: RUF012
    IDENTIFIERS = ["`"]  # noqa: RUF012
    STRING_ESCAPES = ["\\", "'", '"']  # noqa: RUF012
    COMMENTS = ["--", ("/*", "*/")]  # noqa: RUF012

    def tokenize(self, sql: str) -> list[Token]:
        """Returns all tokens of a text, with their lines and columns."""
        tokens: list[Token] = []
        line, before = 1, 0
        for token in scan(sql):
            if not token:
                return tokens
            line, before = line + sql.count("\n", before, token.start), token.start
            token.line, token.col = line, token.start - sql.rfind("\n", 0, token.start)
            tokens.append(token)
        raise AssertionError("a text has an end")


def scan(text: str, at: int = 0) -> Iterator[Token]:
    """Yields the tokens of a text from `at` on, without lines and columns, and at its end SENTINELs for ever."""
    match = _TOKEN.match
    while True:
        found = match(text, at)
        assert found is not None
        group = found.lastindex or _END
        start, at = found.span(group)
        raw = text[start:at]
        last = at - 1
        if group == _WORD:
            kind = KEYWORDS.get(raw.upper(), TokenType.VAR)
            yield Token(kind, raw, 1, 1, start, last, _NO_COMMENTS)
            if kind is TokenType.VALUES:
                start = skip_blank(text, at)
                at = max(at, skip_rows(text, start))
                if at > start:
                    yield Token(TokenType.ROWS, text[start:at], 1, 1, start, at - 1, _NO_COMMENTS)
        elif group == _OPERATOR:
            yield Token(OPERATORS[raw], raw, 1, 1, start, last, _NO_COMMENTS)
        elif group == _NUMBER:
            yield Token(TokenType.NUMBER, raw, 1, 1, start, last, _NO_COMMENTS)
        elif group == _STRING:
            yield Token(TokenType.STRING, unescape(raw), 1, 1, start, last, _NO_COMMENTS)
        elif group == _QUOTED:
            yield Token(TokenType.IDENTIFIER, raw[1:-1].replace("``", "`"), 1, 1, start, last, _NO_COMMENTS)
        elif group == _DURATION:
            yield Token(TokenType.INTERVAL, raw, 1, 1, start, last, _NO_COMMENTS)
        elif group == _HEX_STRING:
            yield Token(TokenType.HEX_STRING, raw[2:-1], 1, 1, start, last, _NO_COMMENTS)
        elif group == _BAD:
            yield Token(TokenType.UNKNOWN, raw, 1, 1, start, last, _NO_COMMENTS)
        else:
            break
    end = Token(TokenType.SENTINEL, "", 1, 1, start, last, _NO_COMMENTS)
    while True:
        yield end


def back_quoted(text: str) -> str:
    """Returns a text with double quotes around names in the dialect, where they are around texts.

    What follows a name keeps its offset, unless there is a back-quote in the name.
    """
    return _QUOTES.sub(_back_quoted, text) if '"' in text else text


def _back_quoted(found: re.Match[str]) -> str:
    written = found["name"]
    return found[0] if written is None else quote_identifier(plain_name(written)).ljust(len(written))


def check_words(text: str, query_words: int) -> None:
    """Raises LimitExceededError if more than `query_words` tokens come from a SELECT on.

    What comes before, such as the tables and values of an INSERT, is read with little effort.
    """
    if len(text) <= query_words or not _SELECT.search(text):
        return
    tokens = takewhile(lambda token: token.token_type is not TokenType.SENTINEL, scan(text))
    query = dropwhile(lambda token: token.token_type is not TokenType.SELECT, tokens)
    beyond = next(islice(query, query_words, None), None)
    if beyond is not None:
        raise LimitExceededError(
            f"the query has more than {query_words} words, numbers and signs",
            hint="put values into a table and join it, or raise queryWordsMax",
            position=position(text, beyond.start, 0))


def skip_blank(text: str, at: int) -> int:
    """Returns where white space, comments and hints that start at `at` end."""
    skipped = _SKIPPED.match(text, at)
    assert skipped is not None
    return skipped.end()


def skip_rows(text: str, at: int) -> int:
    """Returns the end of the longest sequence `(...)[,](...)...` that starts at `at`, which it may equal.

    Quotes, comments and up to three levels of brackets are understood; a row that is never closed ends the sequence.
    """
    match = _ROWS.match(text, at)
    assert match is not None
    return match.end()
