"""Checkpoints of streams: the state machine, commit records, backups.

Imports of this part: query and what is below.
"""
