"""Lowering of bound statements to plans of tasks and to DuckDB SQL."""
