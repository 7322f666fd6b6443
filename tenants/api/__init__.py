"""REST of this room, and the base view that every tenant-scoped API uses."""
