"""Decisions about running streams: task graphs, stored plans, statuses, memory, monitoring.

Imports of this part: groups and what is below.
"""
