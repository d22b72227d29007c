"""Results on their way out of Penstock: where they are sent, how they are retried, and what happens if they fail."""
