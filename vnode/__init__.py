"""One vnode: its WAL and its table store (memtable, Parquet parts), snapshots, deletes, compaction; the dnode."""
