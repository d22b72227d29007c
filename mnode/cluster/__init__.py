"""Nodes that keep copies of each other's logs: who is active, what is acknowledged, who follows.

Pure state machines and what they say to each other. What they need of the disk is in `stored_logs`, as protocols.
Imports of this part: nothing.
"""
