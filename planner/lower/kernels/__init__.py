"""What is simple enough to be computed without DuckDB, derived from the same trees."""
