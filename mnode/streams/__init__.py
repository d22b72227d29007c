"""Statements about streams and ingests: create, control, replace, replay, split; reports of streams.

Imports of this part: explain and what is below.
"""
