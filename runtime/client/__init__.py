"""The ``millpond`` command line: REST, resumable uploads, and one engine by itself. No server code."""
