"""Append-only facts: audit events, outbox, generations, idempotency records."""
