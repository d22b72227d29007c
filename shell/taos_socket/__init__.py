"""TDengine's WebSocket protocol as a server: what its newer connectors send, and what they are sent.

Imports of this part: api and what is below.
"""
