"""Recalculation from rows of the store: ranges, history, and windows that rows define.

Imports of this part: dropped and what is below.
"""
