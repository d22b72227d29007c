"""Few rows, written into a vnode one by one."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.vnode.store.table_state import Row
from penstock.vnode.vnode import Vnode


def write_few(
    vnode: Vnode, table_uid: int, columns: Sequence[str], rows: Sequence[Row], *, partial: bool = False
) -> int | None:
    """Writes rows and returns the version once it is acknowledged; None, and nothing, where `begin_few` doesn't."""
    begun = vnode.writer.begin_few(table_uid, columns, rows, partial=partial)
    return None if begun is None else begun.wait()
