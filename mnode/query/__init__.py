"""Queries: table scans, slots, execution and cancellation.

Imports of this part: write and what is below.
"""
