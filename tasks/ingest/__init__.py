"""Ingests: messages decoded, mapped to rows, written.

Imports of this part: sink and what is below.
"""
