"""How blocks go from task to task: bounded queues, inbox, outbox, watermarks, rates.

Imports of this part: compute and what is below.
"""
