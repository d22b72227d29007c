"""Arrow Flight SQL: what server and client share, and the client of the shell and of connections."""
