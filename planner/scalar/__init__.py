"""Operators, casts and comparisons over single values: their types, and what DuckDB computes for them."""
