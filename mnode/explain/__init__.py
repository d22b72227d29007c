"""EXPLAIN, EXPLAIN ANALYZE, and the verdict of streams.

Imports of this part: controller and what is below.
"""
