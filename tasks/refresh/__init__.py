"""Streams of any query: source tasks report changes, and a refresh task lets the engine update the result table.

Imports external, flow, operators, protocol and source.
"""
