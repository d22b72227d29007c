"""SELECT and UNION to a logical plan."""
