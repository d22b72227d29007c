"""Where tasks run: the worker process, its runner, and Spark's edge.

Imports of this part: every other room.
"""
