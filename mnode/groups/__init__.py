"""Worker groups and their streams as a state machine: events in, instructions out.

Imports of this part: checkpoints and what is below.
"""
