"""Texts of results that are none: data directories of earlier versions may hold some."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.common.errors import InvalidValueError

_SHOWN = 100


@contextmanager
def texts_of_results() -> Iterator[None]:
    """Names bytes that can't be a text of Python, in a `with` block that takes values from the rows of a query.

    Raises InvalidValueError.
    """
    try:
        yield
    except UnicodeDecodeError as error:
        raise InvalidValueError(f"{str(error.object)[:_SHOWN]} in the result is not valid UTF-8",
                                hint="earlier versions took it: write the row again, or delete it") from error
