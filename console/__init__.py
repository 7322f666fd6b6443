"""The console: pages over the rooms' selectors and services. It holds no rules of its own."""
