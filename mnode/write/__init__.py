"""Rows on their way in: INSERT, Arrow, CSV, schemaless lines, deletes, results of streams.

Imports of this part: ddl and what is below.
"""
