"""DuckDB SQL as trees: construction, printing, time and quoting. Doesn't know plans."""
