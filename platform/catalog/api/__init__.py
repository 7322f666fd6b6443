"""REST of this room, and resumable uploads (tus 1.0.0) as bare ASGI."""
