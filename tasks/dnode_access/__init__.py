"""Access of a worker's tasks to the dnode: logs and states by files or network, rows, writes of results.

Imports of this part: state and what is below.
"""
