"""Logical plans: what queries and streams do with rows, as operators; not how."""
