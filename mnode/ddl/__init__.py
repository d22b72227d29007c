"""DDL: databases, tables, views, child tables, tags, users, functions, connections.

Imports of this part: dnode and what is below.
"""
