"""Reads of this room."""

from telemetry.series import METRICS, Point, series

__all__ = ["METRICS", "Point", "series"]
