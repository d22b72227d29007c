"""What carries items between tasks on different workers: channels, bundled in one connection per pair of workers.

Imports of this part: flow and what is below.
"""
