"""Loops over columns that numba compiles: what they do, where the compiled code is kept, and when it is there.

Knows no rows, tasks or plans; imports nothing of this part.
"""
