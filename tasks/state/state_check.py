"""Reads the whole state of tasks and says whether a checkpoint can be restored from it. Changes nothing.

LMDB trusts its own pages: damage in them can end the process that reads them. So another process does the reading.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from penstock.common.errors import PenstockError
from penstock.tasks.state.state_store import StateStore

Wanted = tuple[Path, int]
"""A task's folder, and the id of the checkpoint that it must hold."""


def check_states(wanted: Sequence[Wanted]) -> list[str | None]:
    """Returns for each why the state doesn't hold the checkpoint intact, or None. The tasks must not run."""
    answers: list[str | None] = []
    context = multiprocessing.get_context("spawn")
    while len(answers) < len(wanted):
        receiver, sender = context.Pipe(duplex=False)
        reader = context.Process(target=_read_all, args=(wanted[len(answers):], sender))
        reader.start()
        sender.close()
        try:
            while True:
                answers.append(receiver.recv())
        except EOFError:
            reader.join()
        if len(answers) < len(wanted):
            answers.append(f"its pages are damaged: reading it ended the process (exit code {reader.exitcode})")
    return answers


def _read_all(wanted: Sequence[Wanted], sender: Connection) -> None:
    for folder, checkpoint_id in wanted:
        sender.send(_problem(folder, checkpoint_id))


def _problem(folder: Path, checkpoint_id: int) -> str | None:
    data = folder / "data.mdb"
    if not data.exists():
        return "it is missing"
    try:
        store = StateStore(folder, max(2 * data.stat().st_size, 1 << 20))
    except PenstockError as error:
        return error.message
    try:
        store.verify(checkpoint_id)
    except PenstockError as error:
        return error.message
    finally:
        store.close()
    return None
