"""Server for TDengine's WebSocket protocol.

Imports of this part: api and what is below.
"""
