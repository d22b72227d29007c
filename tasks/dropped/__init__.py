"""Rows that a stream leaves out: late, from the future, not to be computed; counted, shown, kept as dead letters.

Imports of this part: operators and what is below.
"""
