"""Parses what TDengine adds to SELECT: windows, FILL, and the instants of INTERP."""

from __future__ import annotations

from typing import Literal, cast

from sqlglot import exp
from sqlglot.tokens import TokenType

from penstock.common.errors import NotSupportedError
from penstock.sql.dialect.parse_expression import ExpressionParser
from penstock.sql.tree.statements import (
    CountWindow,
    Duration,
    EventWindow,
    Fill,
    FillMode,
    IntervalWindow,
    Range,
    SessionWindow,
    StateWindow,
    Window,
)

_FILL_MODES = ("NONE", "NULL", "NULL_F", "VALUE", "VALUE_F", "PREV", "NEXT", "LINEAR", "NEAR")
_MAX_COUNT_WINDOW = 2**31 - 1


class WindowParser(ExpressionParser):
    """Windows and their kin."""

    def parse_window_offset(self) -> tuple[Duration, Duration]:
        self.expect("WINDOW_OFFSET")
        self.expect("(")
        start = self.duration("the start of the window", signed=True)
        self.expect(",")
        end = self.duration("the end of the window", signed=True)
        self.expect(")")
        return start, end

    def parse_window(self) -> Window | None:
        if self.take("INTERVAL"):
            return self._parse_interval()
        if self.take("SESSION"):
            self.expect("(")
            column = self.parse_operand()
            self.expect(",")
            gap = self.duration("the gap of the session")
            self.expect(")")
            return SessionWindow(column, gap)
        if self.take("STATE_WINDOW"):
            return StateWindow(self.wrapped(self.parse_expression), self._parse_true_for())
        if self.at("EVENT_WINDOW"):
            return self.parse_event_window()
        if self.take("COUNT_WINDOW"):
            return self._parse_count_window()
        if self.at("ANOMALY_WINDOW"):
            raise NotSupportedError("ANOMALY_WINDOW is not supported", position=self.place(self.token))
        return None

    def parse_event_window(self) -> EventWindow:
        """Parses EVENT_WINDOW START WITH ... END WITH ..., which may stand in parentheses."""
        self.expect("EVENT_WINDOW")
        wrapped = self.at("(", "START", "WITH") and self.take("(")
        self.expect("START", "WITH")
        start = self.parse_expression()
        self.expect("END", "WITH")
        end = self.parse_expression()
        if wrapped:
            self.expect(")")
        return EventWindow(start, end, self._parse_true_for())

    def _parse_interval(self) -> IntervalWindow:
        self.expect("(")
        interval = self.duration("the width of the window")
        offset: Duration | Literal["auto"] | None = None
        if self.take(","):
            offset = "auto" if self.take("AUTO") else self.duration("the offset of the window", signed=True)
        self.expect(")")
        sliding = self._parse_length("SLIDING", "the step of the window")
        return IntervalWindow(interval, offset, sliding)

    def _parse_count_window(self) -> CountWindow:
        self.expect("(")
        count = self.integer("the number of rows", maximum=_MAX_COUNT_WINDOW)
        sliding: int | None = None
        columns: list[exp.Expression] = []
        while self.take(","):
            if sliding is None and not columns and self.at_type(TokenType.NUMBER):
                sliding = self.integer("the number of rows of the step", maximum=_MAX_COUNT_WINDOW)
            else:
                columns.append(self.parse_operand())
        self.expect(")")
        return CountWindow(count, sliding, tuple(columns))

    def _parse_true_for(self) -> Duration | None:
        return self._parse_length("TRUE_FOR", "the least length of the window")

    def _parse_length(self, word: str, what: str) -> Duration | None:
        """Parses `word (duration)`, if it comes next."""
        return self.wrapped(lambda: self.duration(what)) if self.take(word) else None

    def parse_interp_range(self) -> Range | None:
        if not self.take("RANGE"):
            return None
        self.expect("(")
        first = self.parse_operand()
        last: exp.Expression | None = None
        near: Duration | None = None
        if self.take(","):
            if self.at_type(TokenType.INTERVAL) and self.peek() == ")":
                near = self.duration("how far away a value may be")
            else:
                last = self.parse_operand()
                if self.take(","):
                    near = self.duration("how far away a value may be")
        self.expect(")")
        return Range(first, last, near)

    def parse_every(self) -> Duration | None:
        return self._parse_length("EVERY", "the step")

    def parse_fill(self, *, allowed: bool) -> Fill | None:
        if not self.at("FILL"):
            return None
        if not allowed:
            raise self.fail("FILL must follow INTERVAL, RANGE or EVERY")
        self.advance()
        self.expect("(")
        word = self.take_any(*_FILL_MODES)
        if word is None:
            raise self.fail("a fill mode is expected", hint="one of " + ", ".join(_FILL_MODES))
        values: list[exp.Expression] = []
        while self.take(","):
            token = self.token
            value = self.parse_operand()
            if next(value.find_all(exp.Column), None) is not None:
                raise self.fail("a fill value must be a constant", token)
            values.append(value)
        if values and word not in ("VALUE", "VALUE_F"):
            if word != "NEAR":
                raise self.fail(f"FILL({word}) takes no values")
        elif not values and word in ("VALUE", "VALUE_F"):
            raise self.fail(f"FILL({word}) needs a value per column")
        self.expect(")")
        return Fill(cast(FillMode, word.lower()), tuple(values))
