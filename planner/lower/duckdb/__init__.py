"""Logical plans as trees of DuckDB SQL: a chain of CTEs, one per operator where one select cannot hold more."""
