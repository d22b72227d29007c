"""Binding of names and expressions: relations, scopes, joins, and clauses about time."""
