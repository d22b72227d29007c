"""Flow of blocks between tasks: bounded queues, inbox, outbox, watermarks, rates.

Imports of this part: compute and what is below.
"""
