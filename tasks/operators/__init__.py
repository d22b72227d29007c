"""What all tasks share: the frame that a task is driven by, its status, destinations, delayed results.

Imports of this part: external and what is below.
"""
