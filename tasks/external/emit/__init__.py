"""Results for external targets: writers, retries, and what happens after failures."""
