"""Ingests: decoding messages, mapping them to rows, writing rows.

Imports of this part: sink and what is below.
"""
