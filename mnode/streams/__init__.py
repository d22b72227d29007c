"""Statements on streams and ingests: create, explain, replace, replay, split; what is said of a stream.

Imports of this part: controller and what is below.
"""
