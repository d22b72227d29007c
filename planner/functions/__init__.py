"""The functions of the dialect, each in one place, and DuckDB's: what they take and give, and what DuckDB computes."""
