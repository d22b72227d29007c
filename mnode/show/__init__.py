"""SHOW and the system tables.

Imports of this part: streams and what is below.
"""
