"""Reads the whole state of one task and says whether a checkpoint can be restored from it. Changes nothing."""

from __future__ import annotations

from pathlib import Path

from penstock.common.errors import PenstockError
from penstock.tasks.state_store import StateStore


def check_state(folder: Path, checkpoint_id: int) -> str | None:
    """Returns why the state in `folder` doesn't hold the checkpoint intact, or None. The task must not run."""
    if not (folder / "data.mdb").exists():
        return "it is missing"
    size = (folder / "data.mdb").stat().st_size
    try:
        store = StateStore(folder, max(2 * size, 1 << 20))
    except PenstockError as error:
        return error.message
    try:
        store.verify(checkpoint_id)
    except PenstockError as error:
        return error.message
    finally:
        store.close()
    return None
