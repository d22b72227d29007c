"""How tasks of a worker reach the dnode: its logs and their states by files or by network, rows, and result writes.

Imports of this part: state and what is below.
"""
