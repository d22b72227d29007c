"""Operators, casts and comparisons of scalar values: types, and DuckDB expressions."""
