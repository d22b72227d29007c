"""The one place where file and directory names of a data directory are built."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath


def is_inner(path: str) -> bool:
    """Tells whether a relative path from a file that may be forged names something below where it is used."""
    parts = path.split("/")
    return path == str(PurePosixPath(path)) and path.isprintable() and "\\" not in path and not (
        {"", ".", ".."} & set(parts))


def numbered(folder: Path, base: int) -> list[int]:
    """Returns what is in a folder under a number as this page writes it: decimal, or hexadecimal for streams."""
    found = []
    for path in folder.iterdir() if folder.is_dir() else ():
        try:
            number = int(path.name, base)
        except ValueError:
            continue
        if path.name == (f"{number:x}" if base == 16 else str(number)):
            found.append(number)
    return sorted(found)


@dataclass(frozen=True, slots=True)
class DataPaths:
    """All paths below one data directory.

    root/
      LOCK                              flock of the engine that has the directory open
      FORMAT                            format version, written once
      penstock.sock                     socket of `penstock serve` (socketPath)
      PLACE                             by what workers tell whether they reach this directory as files
      catalog/                          LMDB of the mnode
      catalog-log/                      its changes, of which other nodes of a cluster have copies
      CLUSTER                           whose disk this is in a cluster, and the newest epoch
      received/                         another node's catalog and its log, which take the place of these at the start
      copies/                           copies of the catalog, made by the engine
      children/<table uid>.parquet      child tables (uid, name, tags) of a super table, for the views
      views.sql, views.duckdb           views for any DuckDB, kept current by the engine
      vnode/<vgroup id>/wal/            WAL segments and END (acknowledged end)
      vnode/<vgroup id>/DATABASE        what the catalog says of its database, to build a lost catalog again
      vnode/<vgroup id>/store/          MANIFEST and parts/<table uid>/*.parquet
      spill/                            what DuckDB can't keep in memory; emptied when the engine starts
      scratch/                          copies under way; removed when the engine starts
      scratch/whole/streams/<stream id>/  from a backup, before it takes its place; whole with its commit record
      damaged/                          what was moved out of the way, below the path that it had
      streams/<stream id>/checkpoints/  commit records, one file per checkpoint
      streams/<stream id>/state/<task>/ LMDB of one task
      incidents/<stream id>/<number>/   a result that the audit has found to be wrong, and rows to reproduce it
    """

    root: Path

    @property
    def lock(self) -> Path:
        return self.root / "LOCK"

    @property
    def format(self) -> Path:
        return self.root / "FORMAT"

    @property
    def place(self) -> Path:
        return self.root / "PLACE"

    @property
    def catalog(self) -> Path:
        return self.root / "catalog"

    @property
    def catalog_log(self) -> Path:
        return self.root / "catalog-log"

    @property
    def cluster(self) -> Path:
        return self.root / "CLUSTER"

    @property
    def received(self) -> Path:
        return self.root / "received"

    @property
    def catalog_copies(self) -> Path:
        return self.root / "copies"

    @property
    def views_sql(self) -> Path:
        return self.root / "views.sql"

    @property
    def views_duckdb(self) -> Path:
        return self.root / "views.duckdb"

    def holds_data(self) -> bool:
        """Tells whether there are vnodes or states of streams or ingests."""
        return bool(numbered(self.vnodes, 10) or numbered(self.streams, 16))

    @property
    def needed(self) -> tuple[Path, ...]:
        """What an engine reads and writes in here, without what it makes anew."""
        return (self.lock, self.format, self.catalog, self.catalog_log, self.cluster, self.catalog_copies,
                self.children_lists, self.vnodes, self.streams)

    @property
    def children_lists(self) -> Path:
        return self.root / "children"

    def children(self, table_uid: int) -> Path:
        return self.children_lists / f"{table_uid}.parquet"

    def uid_of_children(self, name: str) -> int | None:
        """Returns the table whose list of children has this name; None if it is no such list."""
        stem, _, suffix = name.partition(".")
        return int(stem) if suffix == "parquet" and stem.isdigit() else None

    @property
    def vnodes(self) -> Path:
        return self.root / "vnode"

    def vnode(self, vgroup_id: int) -> Path:
        return self.vnodes / str(vgroup_id)

    def description(self, vgroup_id: int) -> Path:
        return self.vnode(vgroup_id) / "DATABASE"

    def wal(self, vgroup_id: int) -> Path:
        return self.vnode(vgroup_id) / "wal"

    def store(self, vgroup_id: int) -> Path:
        return self.vnode(vgroup_id) / "store"

    def parts(self, vgroup_id: int, table_uid: int) -> Path:
        return self.store(vgroup_id) / "parts" / str(table_uid)

    @property
    def spill(self) -> Path:
        return self.root / "spill"

    @property
    def scratch(self) -> Path:
        return self.root / "scratch"

    @property
    def staged(self) -> DataPaths:
        """Where streams from backups are put together, under the same names as below the root."""
        return DataPaths(self.scratch / "whole")

    @property
    def aside(self) -> Path:
        return self.root / "damaged"

    @property
    def streams(self) -> Path:
        return self.root / "streams"

    def stream(self, stream_id: int) -> Path:
        return self.streams / f"{stream_id:x}"

    def incidents(self, stream_id: int) -> Path:
        return self.root / "incidents" / f"{stream_id:x}"

    def checkpoints(self, stream_id: int) -> Path:
        return self.stream(stream_id) / "checkpoints"

    def state(self, stream_id: int, task: str) -> Path:
        return self.stream(stream_id) / "state" / task
