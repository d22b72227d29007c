"""The commands of `penstock`, a module each, and the options of those that start without their libraries.

Imports of this part: server and what is below.
"""
