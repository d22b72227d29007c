"""What tasks ask the dnode for: each class says what the answer is."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from penstock.tasks.protocol.refreshing import AnswerRequest, FireRequest, RefreshRequest


@dataclass(frozen=True, slots=True)
class RowsRequest:
    """The ticket of a read: rows of one table of a vnode with first_ts <= ts <= last_ts, as of a WAL version.

    `tuids` None: of all child tables. `times`: of each of `tuids` a time, as many; only rows at these are read. The
    columns of the answer are `_tuid`, the physical columns and `_ver`.
    """

    vgroup_id: int
    table_uid: int
    tuids: pa.UInt64Array | None
    first_ts: int
    last_ts: int
    as_of: int
    times: pa.Int64Array | None = None


@dataclass(frozen=True, slots=True)
class SpanRequest:
    """The ticket of a question: where in [first_ts, last_ts] a table of a vnode has rows, as of a WAL version.

    The answer is one row, the fields of a `TimeSpan`; none if there are no rows.
    """

    vgroup_id: int
    table_uid: int
    first_ts: int
    last_ts: int
    as_of: int


@dataclass(frozen=True, slots=True)
class TableRequest:
    """The ticket of a look at a whole normal table as it is now: these of its physical columns.

    Of a super table: these tags of its children, by their names, and `tbname`.
    """

    table_uid: int
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NamesRequest:
    """The ticket of a question: which of these names are those of tables that aren't children of a super table.

    The answer is one column of names.
    """

    table_uid: int
    names: tuple[str, ...]


StoreRequest = RowsRequest | SpanRequest | TableRequest | NamesRequest | RefreshRequest | AnswerRequest | FireRequest
