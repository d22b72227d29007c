"""What tasks compute: plain data that is stored and shipped to workers."""
