"""What tasks, workers and the mnode say to each other: messages, deployments, control, the wire, the schemas of blocks.

Imports of this part: nothing of tasks.
"""
