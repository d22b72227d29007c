"""Where the shell's text goes: standard output or a file, and errors in red; knows whether there is a terminal."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from penstock.common.errors import StorageError


class Screen:
    """Output of one shell. `redirect` sends results, not errors, to a file."""

    def __init__(self, output: TextIO, errors: TextIO, environment: Mapping[str, str] = os.environ) -> None:
        self._standard = output
        self._output = output
        self._errors = errors
        self._may_colour = "NO_COLOR" not in environment and environment.get("TERM") != "dumb"

    @property
    def is_terminal(self) -> bool:
        return self._output is self._standard and self._standard.isatty()

    @property
    def has_colour_for_errors(self) -> bool:
        return self._may_colour and self._errors.isatty()

    @property
    def width(self) -> int | None:
        """Columns of the terminal, or None where the output isn't one."""
        return shutil.get_terminal_size().columns if self.is_terminal else None

    def write(self, text: str) -> None:
        self._output.write(text)
        self._output.flush()

    def complain(self, text: str) -> None:
        """Writes to the error output, behind what has been written so far."""
        self._output.flush()
        self._errors.write(f"{text}\n")
        self._errors.flush()

    def redirect(self, name: str | None) -> None:
        """Sends what follows to the file `name`, or back to the standard output."""
        if self._output is not self._standard:
            self._output.close()
            self._output = self._standard
        if name is not None:
            try:
                self._output = Path(name).expanduser().open("w", encoding="utf-8")
            except OSError as error:
                raise StorageError(f"cannot write {name}: {error.strerror}") from error

    def clear(self) -> None:
        if self.is_terminal:
            self.write("\x1b[2J\x1b[H")

    @contextmanager
    def progress(self, text: str, seconds: float | None = None) -> Iterator[None]:
        """Shows that something is going on while the block runs; nothing where there is no terminal.

        `seconds`: how long it takes, if that is known; a bar fills up meanwhile.
        """
        if not (self._errors.isatty() and self._standard.isatty()):
            yield
            return
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        from penstock.shell.terminal.elapsed_bar import ElapsedBar

        moving = SpinnerColumn() if seconds is None else ElapsedBar()
        columns = (moving, TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=Console(file=self._errors), transient=True) as progress:
            progress.add_task(text, total=seconds)
            yield
