"""Messages between tasks, workers and the mnode: deployments, control, wire format, schemas of blocks.

Imports of this part: nothing of tasks.
"""
