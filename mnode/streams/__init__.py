"""Statements on streams and ingests: create, explain, replace, replay, split; what is said of a stream.

Imports of this part: coordinator and what is below.
"""
