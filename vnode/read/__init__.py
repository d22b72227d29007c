"""Reading a store: snapshots, views for DuckDB, reading without an engine.

Imports of this part: store.
"""
