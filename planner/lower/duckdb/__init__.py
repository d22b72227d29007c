"""Lowering of logical plans to DuckDB SQL: a chain of CTEs, one per operator where one SELECT isn't enough."""
