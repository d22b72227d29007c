"""Values on their way into columns, of INSERT ... VALUES, line protocol and Arrow; what does not fit is told."""
