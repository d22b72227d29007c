"""Clients of external servers: one module per library, which creates clients and translates errors."""
