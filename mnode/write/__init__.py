"""Writes: INSERT, Arrow, CSV, schemaless lines, deletes, results of streams.

Imports of this part: ddl and what is below.
"""
