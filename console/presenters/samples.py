"""The same act as code: what to paste to call an endpoint or to repeat a form."""

import json
import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple


class Sample(NamedTuple):
    """Code in one language; ``lang`` is the tab's name."""

    lang: str
    text: str


def chat(gateway_url: str, model: str, prompt: str = "Hello") -> list[Sample]:
    """How to call ``model`` with curl and with the official Python client."""
    body = {"model": model, "stream": True, "messages": [{"role": "user", "content": prompt}]}
    curl = (
        f"curl {gateway_url}/v1/chat/completions \\\n"
        '  -H "Authorization: Bearer $MILLPOND_API_KEY" \\\n'
        '  -H "Content-Type: application/json" \\\n'
        f"  -d {shlex.quote(json.dumps(body, ensure_ascii=False))}"
    )
    python = (
        "import os\n"
        "from openai import OpenAI\n\n"
        f'client = OpenAI(base_url={json.dumps(gateway_url + "/v1")}, api_key=os.environ["MILLPOND_API_KEY"])\n'
        "stream = client.chat.completions.create(\n"
        f"    model={json.dumps(model, ensure_ascii=False)},\n"
        f'    messages=[{{"role": "user", "content": {json.dumps(prompt, ensure_ascii=False)}}}],\n'
        "    stream=True,\n"
        ")\n"
        "for chunk in stream:\n"
        '    print(chunk.choices[0].delta.content or "", end="")'
    )
    return [Sample("curl", curl), Sample("Python", python)]


def rest(public_url: str, method: str, path: str, body: Mapping[str, Any]) -> Sample:
    """A REST call with curl."""
    text = json.dumps(body, ensure_ascii=False, indent=2)
    return Sample(
        "curl",
        f"curl -X {method} {public_url}/api/v1{path} \\\n"
        '  -H "Authorization: Bearer $MILLPOND_TOKEN" \\\n'
        '  -H "Content-Type: application/json" \\\n'
        f"  -d {shlex.quote(text)}",
    )


def command(*words: str, **options: object) -> Sample:
    """A ``millpond`` command; options that are empty are left out."""
    parts = ["millpond", *(shlex.quote(word) for word in words)]
    for name, value in options.items():
        if value is not None and value is not False and value != "":
            flag = "--" + name.replace("_", "-")
            parts.append(flag if value is True else f"{flag} {shlex.quote(str(value))}")
    return Sample("CLI", " ".join(parts))
