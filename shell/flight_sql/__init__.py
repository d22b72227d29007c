"""Arrow Flight SQL, both ends: the server of `penstock serve`, and the client of our own shell and connections."""
