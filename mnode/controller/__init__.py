"""Executes the instructions of the coordinator's state machines: one thread, its mailbox, workers and Spark.

Imports of this part: coordinator and what is below.
"""
