"""A bar on the error output for work that goes by rows or bytes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def counting_bar(shown: bool | None, total: int | None, unit: str) -> Iterator[Callable[[str, int], None]]:
    """Gives a function that takes (what is worked on, how much more is done); it shows a bar if that is wanted.

    `shown` None: where there is a terminal. `total` None: nobody knows how much there is.
    """
    if not (sys.stderr.isatty() if shown is None else shown):
        yield lambda what, more: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,} " + unit),
               TimeRemainingColumn())
    with Progress(*columns, console=Console(file=sys.stderr)) as bar:
        task = bar.add_task("", total=total)
        yield lambda what, more: bar.update(task, description=what, advance=more)
