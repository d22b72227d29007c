"""Names and expressions of a statement to bound ones: relations, scopes, joins, and what clauses say about time."""
