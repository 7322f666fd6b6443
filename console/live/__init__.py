"""Live updates over WebSocket: hints that something changed, never data."""
