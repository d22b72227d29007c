"""What is said of a stream: EXPLAIN, EXPLAIN ANALYZE, and the verdict on what holds it up.

Imports of this part: controller and what is below.
"""
