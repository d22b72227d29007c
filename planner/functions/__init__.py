"""Functions of the dialect, one definition each, and DuckDB's: arguments, result types, DuckDB expressions."""
