"""What every part needs and that knows none of them: errors, configuration, ids, paths, clock, logging."""
