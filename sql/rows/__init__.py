"""Conversion of values to columns, for INSERT ... VALUES, line protocol and Arrow; errors name what doesn't fit."""
