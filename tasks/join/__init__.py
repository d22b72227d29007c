"""Joins of two tables: source tasks, stored rows of each side, the join task.

Imports of this part: source and what is below.
"""
