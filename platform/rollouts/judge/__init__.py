"""The judge (pure): evidence of two sides, sequential tests, one verdict in one sentence."""
