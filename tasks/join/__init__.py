"""Joins of two tables: their source tasks, the rows kept of each side, the join task.

Imports of this part: source and what is below.
"""
