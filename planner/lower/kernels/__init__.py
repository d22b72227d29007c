"""Kernels: simple computations without DuckDB, derived from the same trees."""
