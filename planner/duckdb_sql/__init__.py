"""DuckDB SQL as trees: how they are made and printed, and time and quoting in them. Knows no plan."""
