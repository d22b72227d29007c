"""Source tasks: following the log, event time, recalculation, dead letters, lookups, history.

Imports of this part: window and what is below.
"""
