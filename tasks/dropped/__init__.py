"""Dropped rows: late, from the future, or failing; counters, samples and dead letters.

Imports of this part: operators and what is below.
"""
