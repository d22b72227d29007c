"""What the examples have in common: replaying rows, showing the tasks, comparing answers."""
