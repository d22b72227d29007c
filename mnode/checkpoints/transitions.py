"""The tables of the state machines: which state may follow which."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import TypeVar

from penstock.common.errors import InternalError

S = TypeVar("S", bound=Enum)


class InvalidTransitionError(InternalError):
    """A state was to be left in a way that the table doesn't know; the message tells what led there."""


def check_transition(
    table: Mapping[S, frozenset[S]], name: str, before: S, after: S, reason: str, story: Iterable[str]
) -> None:
    """Raises InvalidTransitionError unless `after` may follow `before`. `name` and `story` are what it tells."""
    if after not in table[before]:
        raise InvalidTransitionError(
            f"{name}: {before.name} -> {after.name} ({reason}); before: {'; '.join(story)}")
