"""Sink tasks: what is written, in flight or set aside as dead; which writer a target gets.

Imports of this part: join and what is below.
"""
