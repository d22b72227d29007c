"""Planning of SELECT, WITH and set operations."""
