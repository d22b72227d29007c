"""Exchange between tasks of different workers: channels over one connection per pair of workers.

Imports of this part: flow and what is below.
"""
