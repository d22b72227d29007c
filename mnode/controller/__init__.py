"""Performs what the coordinator's state machines decide: one thread, its mailbox, and the edges to workers and Spark.

Imports of this part: coordinator and what is below.
"""
