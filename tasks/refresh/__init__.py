"""Streams of any query: source tasks tell of changes, and a task has the engine compare the result table and the query.

Imports external, flow, operators, protocol and source.
"""
