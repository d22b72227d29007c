"""How people reach Penstock: the command line, output formats, and the DB-API `connect()`."""
