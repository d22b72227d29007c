"""What both ends of Arrow Flight SQL share, and the client of our own shell and connections."""
