"""Windows: state, final aggregation, FILL, and the tasks of windowed streams.

Imports of this part: operators and what is below.
"""
