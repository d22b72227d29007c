"""Queries: which rows they scan, the slots that bound them, how they run and are ended.

Imports of this part: write and what is below.
"""
