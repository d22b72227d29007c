"""Sink tasks: pending results, dead letters, and the writer for each target.

Imports of this part: join and what is below.
"""
