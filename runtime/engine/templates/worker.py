"""Renders chat templates in a process of its own: ``python -I worker.py``.

Reads one JSON object a line from stdin and answers with one a line on stdout. The first holds ``template`` and
``limits``; each later one ``variables``. The process limits its own memory and CPU time before it compiles anything,
and whoever started it kills it when an answer takes too long. Imports nothing of the engine, so that it stays small.
"""

import datetime
import json
import resource
import sys
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.sandbox


class TemplateRefused(jinja2.TemplateError):
    """The template itself refused its input."""


def raise_exception(message: str) -> NoReturn:
    """What templates call to refuse their input."""
    raise TemplateRefused(message)


def strftime_now(pattern: str) -> str:
    """The date, for templates that tell the model what day it is."""
    return datetime.datetime.now().astimezone().strftime(pattern)


def to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **_options: Any) -> str:
    """JSON without HTML escapes, which jinja's own filter would add."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


class GenerationMark(jinja2.ext.Extension):
    """``{% generation %}`` marks the assistant's part for training; for rendering it is nothing."""

    tags = {"generation"}

    def parse(self, parser: Any) -> Any:
        parser.stream.skip()
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    """The sandbox that Hugging Face's chat templates are written for."""
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationMark, "jinja2.ext.loopcontrols"]
    )
    env.filters["tojson"] = to_json
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    return env


def render(template: jinja2.Template, variables: dict[str, Any], limit: int) -> str:
    """Render up to ``limit`` characters."""
    parts: list[str] = []
    size = 0
    for part in template.generate(**variables):
        size += len(part)
        if size > limit:
            raise TemplateRefused(f"the rendered text is longer than {limit} characters")
        parts.append(part)
    return "".join(parts)


def answer(**fields: Any) -> None:
    """Write one line."""
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def limit_self(memory_bytes: int) -> None:
    """Bound memory, files and children of this process; it cannot raise them again."""
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def allow_cpu(seconds: int) -> None:
    """Allow ``seconds`` more of CPU time from now on."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(used.ru_utime + used.ru_stime) + 1 + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.RLIM_INFINITY))


def main() -> None:
    """Answer until stdin ends."""
    first = json.loads(sys.stdin.readline())
    limit_self(first["memory_bytes"])
    allow_cpu(first["cpu_seconds"])
    try:
        template = environment().from_string(first["template"])
    except (jinja2.TemplateError, RecursionError, MemoryError, ValueError, OverflowError) as exc:
        answer(error=f"the chat template does not compile: {exc}")
        return
    answer(ready=True)
    for line in sys.stdin:
        allow_cpu(first["cpu_seconds"])
        try:
            answer(text=render(template, json.loads(line), first["text_limit"]))
        except MemoryError:
            answer(error="the chat template needs too much memory")
        except Exception as exc:  # the template is a stranger's program: whatever it raises is its answer
            answer(error=f"{type(exc).__name__}: {exc}"[:500])


if __name__ == "__main__":
    main()
