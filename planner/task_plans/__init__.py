"""Plans of tasks: plain data that is stored and shipped to workers."""
