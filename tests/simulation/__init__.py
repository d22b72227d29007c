"""The whole system in one thread, driven by a seed: real engine and tasks over a disk, a network and a clock that fail."""
