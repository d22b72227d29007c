"""PostgreSQL's wire protocol as a server: what clients send and are sent, logins, statements, COPY, and its catalog.

Imports of this part: api and what is below.
"""
