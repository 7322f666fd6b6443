"""REST of rollouts and experiments."""
