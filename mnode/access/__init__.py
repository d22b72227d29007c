"""Users, logins, roles and grants, visibility of objects, and the audit log.

Imports of this part: catalog.
"""
