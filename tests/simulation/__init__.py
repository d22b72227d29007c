"""The whole system in one thread, driven by a seed: real engine and tasks, failing disk, network and clock."""
