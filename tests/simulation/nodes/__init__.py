"""Clusters of nodes that keep copies of each other's logs, simulated: `python -m simulation.nodes --seeds 2000`."""
