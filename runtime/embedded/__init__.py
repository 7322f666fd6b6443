"""Millpond on one machine by one command: servers from wheels, one supervisor, no service to install."""
