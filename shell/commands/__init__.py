"""Commands of `penstock`, one module each; options are declared without importing the commands' libraries.

Imports of this part: server and what is below.
"""
