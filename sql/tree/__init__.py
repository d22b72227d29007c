"""Statements and expressions as classes: what the parser makes, the printer prints and the engine executes."""
