"""The table store: rows in memory, Parquet parts, tombstones, manifests.

Imports of this part: nothing of vnode.
"""
