"""Results on their way out of Penstock: what is sent where, how often, and what becomes of what isn't taken."""
