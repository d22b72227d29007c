"""Who is let in, as whom, what they may see and do, and what of it the audit log says.

Imports of this part: catalog.
"""
