"""Rows read back from a vnode's store: recalculation, ranges, history, and the windows of rows.

Imports of this part: dropped and what is below.
"""
