"""The common part of all tasks: task loop, status, destinations, delayed results.

Imports of this part: external and what is below.
"""
