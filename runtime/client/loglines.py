"""A log line as a person reads it: time, level, event, fields."""

import json
from typing import Any, Final

_FIRST: Final = ("timestamp", "level", "event", "process", "exception")


def readable(line: str) -> str:
    """Return a structured log line (one JSON object) in words; any other line as it is."""
    try:
        entry = json.loads(line)
    except ValueError:
        return line
    if not isinstance(entry, dict) or "event" not in entry:
        return line
    clock = str(entry.get("timestamp", ""))[11:19]
    fields = "  ".join(f"{name}={_shown(value)}" for name, value in entry.items() if name not in _FIRST)
    head = f"{clock} {entry.get('level', ''):<8}{entry['event']}"
    trace = f"\n{entry['exception']}" if entry.get("exception") else ""
    return (f"{head}  {fields}" if fields else head).strip() + trace


def _shown(value: Any) -> str:
    return value if isinstance(value, str) and " " not in value else json.dumps(value, ensure_ascii=False)
