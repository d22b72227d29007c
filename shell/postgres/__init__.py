"""Server for PostgreSQL's protocol: messages, logins, statements, COPY, and the system catalog.

Imports of this part: api and what is below.
"""
