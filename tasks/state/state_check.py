"""Reads the states of tasks that don't run, and says whether a checkpoint can be restored from them. Changes nothing.

LMDB trusts its own pages: damage in them can end the process that reads them. So another process does the reading.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from pathlib import Path
from typing import TypeVar

from penstock.common.errors import PenstockError
from penstock.tasks.state.state_store import StateStore

CONTEXT: ForkServerContext | SpawnContext = multiprocessing.get_context("spawn")
"""How the other process starts: not as a fork of this one, which has threads."""

Item = TypeVar("Item")
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
    return in_another_process(wanted, partial(_answer, read))


def in_another_process(items: Sequence[Item], work: Callable[[Item], T]) -> list[T | Unreadable]:
    """Returns what a module's function gives for each item; `Unreadable` where that ends the process."""
    answers: list[T | Unreadable] = []
    while len(answers) < len(items):
        receiver, sender = CONTEXT.Pipe(duplex=False)
        worker = CONTEXT.Process(target=_work, args=(items[len(answers):], work, sender))
        worker.start()
        sender.close()
        try:
            while True:
                answers.append(receiver.recv())
        except EOFError:
            worker.join()
        if len(answers) < len(items):
            answers.append(
                Unreadable(f"its pages are damaged: reading it ended the process (exit code {worker.exitcode})"))
    return answers


def _work(items: Sequence[Item], work: Callable[[Item], T], sender: Connection) -> None:
    for item in items:
        sender.send(work(item))


def _answer(read: Callable[[StateStore, int], T], wanted: Wanted) -> T | Unreadable:
    folder, checkpoint_id = wanted
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
