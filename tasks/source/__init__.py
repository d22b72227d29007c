"""Source tasks: reading the log, event time, lookups, and the changes that they send.

Imports of this part: recalculation and what is below.
"""
