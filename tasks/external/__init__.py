"""External systems: connectors that read, sinks that write, notifications.

Imports of this part: flow and what is below.
"""
