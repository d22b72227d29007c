"""Reads the states of tasks that don't run, and says whether a checkpoint can be restored from them. Changes nothing.

LMDB trusts its own pages: damage in them can end the process that reads them. So another process does the reading.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeVar

from penstock.common.errors import PenstockError
from penstock.tasks.state.state_store import StateStore

T = TypeVar("T")
Wanted = tuple[Path, int]
"""A task's folder, and the id of the checkpoint that it must hold."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Stands for a state that can't be read, and says why."""

    why: str


def check_states(wanted: Sequence[Wanted]) -> list[str | None]:
    """Returns for each why the state doesn't hold the checkpoint intact, or None. The tasks must not run."""
    return [found.why if isinstance(found, Unreadable) else None for found in read_states(wanted, StateStore.verify)]


def read_states(wanted: Sequence[Wanted], read: Callable[[StateStore, int], T]) -> list[T | Unreadable]:
    """Returns what a module's function gives for each store and checkpoint. The tasks must not run.

    `read` may raise PenstockErrors.
    """
    answers: list[T | Unreadable] = []
    context = multiprocessing.get_context("spawn")
    while len(answers) < len(wanted):
        receiver, sender = context.Pipe(duplex=False)
        reader = context.Process(target=_read_all, args=(wanted[len(answers):], read, sender))
        reader.start()
        sender.close()
        try:
            while True:
                answers.append(receiver.recv())
        except EOFError:
            reader.join()
        if len(answers) < len(wanted):
            answers.append(
                Unreadable(f"its pages are damaged: reading it ended the process (exit code {reader.exitcode})"))
    return answers


def _read_all(wanted: Sequence[Wanted], read: Callable[[StateStore, int], T], sender: Connection) -> None:
    for folder, checkpoint_id in wanted:
        sender.send(_answer(folder, checkpoint_id, read))


def _answer(folder: Path, checkpoint_id: int, read: Callable[[StateStore, int], T]) -> T | Unreadable:
    try:
        size = (folder / "data.mdb").stat().st_size
    except OSError as error:
        return Unreadable("it is missing" if isinstance(error, FileNotFoundError) else str(error))
    try:
        store = StateStore(folder, max(2 * size, 1 << 20), readonly=True)
    except PenstockError as error:
        return Unreadable(error.message)
    try:
        return read(store, checkpoint_id)
    except PenstockError as error:
        return Unreadable(error.message)
    finally:
        store.close()
