"""SELECT, WITH and set operations to a logical plan."""
