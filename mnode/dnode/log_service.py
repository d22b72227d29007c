"""The dnode's side of logs that workers read over the network; decodes nothing of what it sends."""

from __future__ import annotations

import pyarrow as pa

from penstock.common.fs import Fs
from penstock.common.paths import DataPaths
from penstock.mnode.dnode.vnode_storage import Storage
from penstock.tasks.dnode_access.remote_log import BytesRequest, EndRequest, LogRequest, SegmentsRequest
from penstock.wal.log import LogFiles
from penstock.wal.segment import NO_END, segment_name

_END = pa.schema([("version", pa.int64()), ("segment", pa.int64()), ("offset", pa.int64()), ("synced", pa.int64()),
                  ("waited", pa.bool_())])
_SEGMENTS = pa.schema([("segment", pa.int64())])
_BYTES = pa.schema([("size", pa.int64()), ("data", pa.large_binary())])


class Logs:
    """Answers workers that don't reach the data directory; keeps nothing between two questions, safe for many threads.

    Whoever follows a log waits here, as workers of this machine do, until its writer rings.
    """

    def __init__(self, storage: Storage, paths: DataPaths, fs: Fs) -> None:
        self._storage = storage
        self._paths = paths
        self._fs = fs

    def answer(self, request: LogRequest) -> pa.Table:
        """Returns what the request's class says. Raises NotFoundError for a vnode that isn't there, StorageError."""
        self._storage.vnode(request.vgroup_id)
        log = LogFiles(self._paths.wal(request.vgroup_id), self._fs)
        try:
            match request:
                case EndRequest(_, version, timeout_s):
                    waited = log.wait(version, timeout_s)
                    end = log.end()
                    rows = [] if end is NO_END else [end._asdict() | {"waited": waited}]
                    return pa.Table.from_pylist(rows, _END)
                case SegmentsRequest():
                    return pa.table([pa.array(log.segments(), pa.int64())], _SEGMENTS)
                case BytesRequest():
                    return self._bytes(request)
        finally:
            log.close()

    def _bytes(self, request: BytesRequest) -> pa.Table:
        try:
            file = self._fs.open_read(self._paths.wal(request.vgroup_id) / segment_name(request.segment))
        except FileNotFoundError:
            return _BYTES.empty_table()
        try:
            data = file.read(request.offset, request.length)
            return pa.table([pa.array([file.size()], pa.int64()), pa.array([data], pa.large_binary())], _BYTES)
        finally:
            file.close()
