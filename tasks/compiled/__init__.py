"""Loops over columns that numba compiles, and the cache of compiled code.

Knows no rows, tasks or plans; imports nothing of this part.
"""
