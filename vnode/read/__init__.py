"""Reading a store: snapshots, views for DuckDB, a store without its engine.

Imports of this part: store.
"""
