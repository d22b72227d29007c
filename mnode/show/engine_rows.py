"""The rows of the system tables about the engine: vnodes, nodes, configuration, ports, what runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from penstock.common.admission import REASONS
from penstock.common.clock import Clock
from penstock.common.config import SPARK_PREFIX, Config, keys
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.cluster.cluster_status import NodeStatus
from penstock.mnode.dnode.vnode_storage import Storage
from penstock.mnode.query.activity import Activity
from penstock.mnode.show.row_source import Maker, Rows
from penstock.sql.schema import Database

_ENDPOINT = "localhost"
_SECRET = re.compile(r"secret|password|token|access\.?key", re.IGNORECASE)  # what Spark's own pages hide


class MembersView(Protocol):
    """What a node of a cluster tells about all of them."""

    @property
    def number(self) -> int: ...

    @property
    def statuses(self) -> Sequence[NodeStatus]: ...

    def address(self, node: int) -> str: ...


class EngineRows:
    """Tells about one engine, since `started_ms`."""

    def __init__(
        self, catalog: Catalog, vnodes: Storage, activity: Activity, config: Config, clock: Clock, version: str,
        started_ms: int, members: MembersView | None,
    ) -> None:
        """`members`: None if the engine belongs to no cluster."""
        self._members = members
        self._catalog = catalog
        self._vnodes = vnodes
        self._activity = activity
        self._config = config
        self._clock = clock
        self._version = version
        self._started_ms = started_ms

    def makers(self) -> dict[str, Maker]:
        return {
            "ins_vgroups": self._vgroups,
            "ins_vnodes": self._vnode_rows,
            "ins_dnodes": self._dnodes,
            "ins_mnodes": self._mnodes,
            "ins_snodes": self._snodes,
            "ins_orphans": self._orphans,
            "ins_cluster": self._cluster,
            "ins_configs": self._configs,
            "ins_ports": self._port_rows,
            "perf_connections": self._connections,
            "perf_queries": self._queries,
        }

    def _vgroups(self) -> Rows:
        for database in self._catalog.databases():
            counts = self._tables_per_vgroup(database)
            for vgroup_id in database.vgroup_ids:
                yield {
                    "vgroup_id": vgroup_id, "db_name": database.name, "tables": counts.get(vgroup_id, 0),
                    "v1_dnode": 1, "v1_status": self._status(vgroup_id),
                    "wal_version": self._vnodes.wal_version(vgroup_id),
                }

    def _tables_per_vgroup(self, database: Database) -> dict[int, int]:
        counts: dict[int, int] = {}
        for table in (*self._catalog.tables(database.name, "super"), *self._catalog.tables(database.name, "normal")):
            for child in self._catalog.children(table.uid):
                counts[child.vgroup_id] = counts.get(child.vgroup_id, 0) + 1
        return counts

    def _vnode_rows(self) -> Rows:
        for database in self._catalog.databases():
            for vgroup_id in database.vgroup_ids:
                found = self._vnodes.recovery(vgroup_id)
                yield {
                    "dnode_id": 1, "vgroup_id": vgroup_id, "db_name": database.name,
                    "status": self._status(vgroup_id), "wal_version": self._vnodes.wal_version(vgroup_id),
                    "reason": self._vnodes.problem(vgroup_id),
                    "lost_records": None if found is None else found.lost_versions,
                    "cut_bytes": None if found is None else found.cut_bytes,
                }

    def _status(self, vgroup_id: int) -> str:
        if self._vnodes.wal_version(vgroup_id) is None:
            return "offline"
        return "leader" if self._vnodes.problem(vgroup_id) is None else "error"

    def _dnodes(self) -> Rows:
        vnodes = sum(len(database.vgroup_ids) for database in self._catalog.databases())
        yield {
            "id": 1, "endpoint": _ENDPOINT, "vnodes": vnodes, "support_vnodes": 1024, "status": "ready",
            "create_time": self._started_ms, "note": "",
        }

    def _mnodes(self) -> Rows:
        yield {"id": 1, "endpoint": _ENDPOINT, "role": "leader", "status": "ready", "create_time": self._started_ms}

    def _snodes(self) -> Rows:
        for snode in self._catalog.snodes.all():
            yield {"id": snode.id, "endpoint": _ENDPOINT, "create_time": snode.created_ms}

    def _orphans(self) -> Rows:
        for path in self._vnodes.orphans:
            yield {"path": str(path), "reason": "is not in the catalog; kept, but not used"}

    def _cluster(self) -> Rows:
        """Yields this engine, or all nodes of its cluster; uptime and version are of this one."""
        uptime = max(0, self._clock.now_ms() - self._started_ms) // 1000
        own = {"uptime": uptime, "create_time": self._started_ms, "version": self._version}
        if self._members is None:
            yield {"id": 1, "name": "penstock", **own}
            return
        number = self._members.number
        for one in self._members.statuses:
            yield {
                "id": one.node, "name": "penstock", **(own if one.node == number else {}),
                "address": self._members.address(one.node), "role": one.role, "epoch": one.epoch,
                "synchronous": one.synchronous, "since": one.since_ms, "lag_versions": one.lag_versions,
                "lag_seconds": one.lag_s, "told_by": number, "verdict": one.verdict,
            }

    def _configs(self) -> Rows:
        units = {key.name: {"duration": "duration", "size": "size"}.get(key.kind) for key in keys().values()}
        for name, value in self._config.items():
            secret = name.startswith(SPARK_PREFIX) and _SECRET.search(name) is not None
            yield {"name": name, "value": "***" if secret else value, "unit": units.get(name)}

    def _port_rows(self) -> Rows:
        for info in self._activity.ports():
            yield {
                "port": info.port, "purpose": info.purpose, "connections": info.counts.connections,
                "strangers": info.counts.strangers,
                **{f"refused_{reason}": info.counts.refused[reason] for reason in REASONS},
            }

    def _connections(self) -> Rows:
        for connection in self._activity.connections():
            yield {
                "conn_id": connection.id, "user": connection.user, "app": "penstock",
                "login_time": connection.login_ms, "last_access": connection.last_access_ms,
            }

    def _queries(self) -> Rows:
        for statement, microseconds in self._activity.running():
            yield {
                "kill_id": f"{statement.id:x}", "conn_id": statement.connection_id,
                "create_time": statement.started_ms, "exec_usec": microseconds, "sql": statement.text[:1024],
                "progress": statement.progress, "user": statement.user,
            }
