"""The worker process, its runner, and the interface to Spark.

Imports of this part: every other room.
"""
