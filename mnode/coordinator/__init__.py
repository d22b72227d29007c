"""Streams at run time: the controller, worker groups, task graphs, checkpoints, backups, monitoring.

Imports of this part: query and what is below.
"""
