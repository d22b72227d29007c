"""Statements that define: databases, tables, views, children, tags, users, functions, connections.

Imports of this part: dnode and what is below.
"""
