"""What a statement has, in the dialect's own words, for people to read."""

from __future__ import annotations

import re

from sqlglot import exp

from penstock.sql.tree.expression_nodes import expression_sql
from penstock.sql.tree.statements import (
    CountWindow,
    Duration,
    EventWindow,
    IntervalWindow,
    SessionWindow,
    StateWindow,
    Window,
)

_PARTS = re.compile(r"""`[^`]*+`|'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+"|[^`'"]++|.""", re.DOTALL)
"""Texts, names in back-quotes, and what is between them."""


def text_of(node: exp.Expression) -> str:
    """Returns the expression as the dialect spells it."""
    return expression_sql(node)


def folded(text: str) -> str:
    """Returns what was typed with all in lower case but texts and names in back-quotes."""
    return _PARTS.sub(lambda found: found[0] if found[0][0] in "`'\"" else found[0].lower(), text)


def window_text(window: Window) -> str:
    """Returns the window clause as EXPLAIN prints it."""
    match window:
        case IntervalWindow():
            text = f"interval({window.interval}{'' if window.offset is None else f', {window.offset}'})"
            return text if window.sliding is None else f"{text} sliding({window.sliding})"
        case SessionWindow():
            return f"session({window.gap})"
        case StateWindow():
            return f"state({text_of(window.expression)}){_least(window.true_for)}"
        case EventWindow():
            return f"event(start {text_of(window.start)} end {text_of(window.end)}){_least(window.true_for)}"
        case CountWindow():
            return f"count({window.count}{'' if window.sliding is None else f', {window.sliding}'})"


def _least(duration: Duration | None) -> str:
    return "" if duration is None else f" true_for({duration})"
