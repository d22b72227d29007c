"""Statement to logical plan to DuckDB SQL, for batches and for the tasks of a stream; EXPLAIN. Executes nothing."""
