"""Replicas: which node is active, what is acknowledged, and how standbys follow.

Pure state machines and what they say to each other. What they need of the disk is in `stored_logs`, as protocols.
Imports of this part: nothing.
"""
