"""Room on the stack: what walks deep trees gets the same depth whoever calls it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

FRAMES_OF_CALLERS = 150
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def with_headroom(work: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Has a function run on a stack of its own where its caller stands deep, as in a notebook or a test.

    So what it may nest doesn't depend on who calls it: at least Python's limit less FRAMES_OF_CALLERS. The function
    must not care in which thread it runs.
    """
    @wraps(work)
    def called(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        try:
            sys._getframe(FRAMES_OF_CALLERS)
        except ValueError:
            return work(*args, **kwargs)
        results: list[_Result] = []
        errors: list[BaseException] = []

        def run() -> None:
            try:
                results.append(work(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001  it is raised in the caller's thread
                errors.append(error)

        thread = threading.Thread(target=run, name=work.__name__, daemon=True)
        thread.start()
        thread.join()
        if errors:
            raise errors[0]
        return results[0]

    return called
