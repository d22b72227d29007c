"""Checkpoints of streams: the state machine that decides, the records that commit them, their backups.

Imports of this part: query and what is below.
"""
