"""Windows: their state, the final stage of aggregates, FILL, and the tasks of windowed streams.

Imports of this part: operators and what is below.
"""
