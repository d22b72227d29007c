"""Streams at run time, decided: worker groups, checkpoints and their records, task graphs, backups, monitoring.

Imports of this part: query and what is below.
"""
