"""REST of this room."""
