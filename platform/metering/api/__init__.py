"""REST of usage, prices and limits."""
