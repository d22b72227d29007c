"""The coordinator: catalog, statement execution, scheduling, deployment, checkpoints, monitoring."""
