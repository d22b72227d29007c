"""Lowerings: from what is bound to what tasks and DuckDB are given."""
