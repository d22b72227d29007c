"""Child tables that logs tell of and the catalog lacks: a crash came before it had stored them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.common.logging import logger
from penstock.mnode.catalog.catalog import Catalog
from penstock.sql.schema import ChildTable, Table
from penstock.tasks.protocol.child_records import BINARY, binary_tag, new_children
from penstock.wal.record import MetaRecord

_log = logger(__name__)
_CREATED, _DROPPED = "create_children", "drop_children"


def take_in_told(catalog: Catalog, told: Callable[..., Sequence[MetaRecord]]) -> None:
    """Has the catalog store them. `told(vgroup_id, *operations)` returns the records that parts are older than.

    A log has the records of a child table before its rows, and that it is dropped before the catalog forgets it.
    Raises StorageError.
    """
    found: dict[int, list[ChildTable]] = {}
    newest = 0
    for database in catalog.databases():
        for vgroup_id in database.vgroup_ids:
            records = told(vgroup_id, _CREATED, _DROPPED)
            newest = max([newest, *(max(new_children(record.body).uids, default=0)
                                    for record in records if record.body["op"] == _CREATED)])
            for child in _left(catalog, vgroup_id, records):
                if catalog.child_by_uid(child.super_uid, child.uid) is None:
                    found.setdefault(child.super_uid, []).append(child)
    catalog.skip_ids(newest)  # also those of child tables that are dropped: their rows may be there
    for super_uid, children in found.items():
        catalog.schema.take_in(super_uid, children)
        _log.info("%d child tables of table %d are taken from logs into the catalog", len(children), super_uid)


def _left(catalog: Catalog, vgroup_id: int, records: Sequence[MetaRecord]) -> Sequence[ChildTable]:
    """Returns the child tables that were created and not dropped, of super tables that there are."""
    left: dict[int, ChildTable] = {}
    for record in records:
        parent = catalog.table_by_uid(record.body["table_uid"])
        if parent is None:
            continue
        if record.body["op"] == _CREATED:
            for child in _created(parent, vgroup_id, record):
                left[child.uid] = child
        else:
            for uid in record.body["children"]:
                left.pop(uid, None)
    return [*left.values()]


def _created(parent: Table, vgroup_id: int, record: MetaRecord) -> list[ChildTable]:
    """Returns the child tables of a record; those with other tags than there are now were taken back before."""
    binary = [tag.type.kind in BINARY for tag in parent.tags]
    return [ChildTable(uid, name, vgroup_id,
                       tuple(binary_tag(value) if is_binary else value
                             for value, is_binary in zip(values, binary, strict=False)),
                       record.ingest_time_ms, parent.uid)
            for uid, name, values in new_children(record.body).rows() if len(values) == len(parent.tags)]
