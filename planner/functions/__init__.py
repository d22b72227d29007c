"""The functions of the dialect, each in one place: what it takes and gives, and what DuckDB computes for it."""
