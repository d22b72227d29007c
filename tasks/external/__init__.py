"""External systems: connectors that read, sinks that write, and notifications.

Imports of this part: flow and what is below.
"""
