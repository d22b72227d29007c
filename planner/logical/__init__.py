"""Logical plans: the operators of queries and streams."""
