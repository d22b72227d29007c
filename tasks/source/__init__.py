"""Source tasks: following the log, event time, lookups, and what changes are sent on.

Imports of this part: recalculation and what is below.
"""
