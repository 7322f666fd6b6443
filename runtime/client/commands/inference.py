"""chat: a completion through the gateway. serve: one engine on this machine and nothing else of the platform."""

import json
import os
import sys
from collections.abc import Iterator
from typing import Annotated, Any, Final

import httpx2
import typer

from runtime.client import session as sessions
from runtime.client.api import checked, http_client
from runtime.client.errors import ApiError, ClientError, Unreachable

SERVE: Final = "serve"
_REVISION: Final = "x-millpond-revision"
_TIMEOUT: Final = httpx2.Timeout(10.0, read=600.0)


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(chat)
    handed_over = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
    app.command(name=SERVE, context_settings=handed_over, add_help_option=False)(serve)


def chat(
    ctx: typer.Context,
    model: Annotated[str, typer.Argument(help="Name to call: an endpoint, or owner/endpoint.")],
    prompt: Annotated[str, typer.Argument(help="What to say; - reads it from stdin.")],
    system: Annotated[str, typer.Option(help="A system message before it.")] = "",
    max_tokens: Annotated[int | None, typer.Option(min=1)] = None,
    temperature: Annotated[float | None, typer.Option(min=0.0, max=2.0)] = None,
    revision: Annotated[
        str,
        typer.Option(
            help="The revision that answers, whatever its share (r7, v3, or an id): the key also needs manage."
        ),
    ] = "",
) -> None:
    """Stream one chat completion through the gateway, with an API key."""
    session = sessions.of(ctx)
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": sys.stdin.read() if prompt == "-" else prompt})
    body: dict[str, Any] = {
        "model": model,
        "messages": messages,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    body.update({k: v for k, v in (("max_tokens", max_tokens), ("temperature", temperature)) if v is not None})
    with http_client(session.gateway, bearer=session.inference_key, timeout=_TIMEOUT) as http:
        try:
            usage = _stream(http, body, {_REVISION: revision} if revision else {})
        except httpx2.HTTPError as exc:
            raise Unreachable(
                f"The gateway at {session.gateway} broke off or cannot be reached ({exc}); "
                f"if it is elsewhere, set {sessions.ENV_GATEWAY} or run `millpond login --gateway URL`."
            ) from exc
    if usage:
        session.output.note(f"[{usage.get('prompt_tokens')} tokens in, {usage.get('completion_tokens')} out]")


def _stream(http: httpx2.Client, body: dict[str, Any], headers: dict[str, str]) -> dict[str, Any]:
    usage: dict[str, Any] = {}
    with http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as response:
        if not response.is_success:
            response.read()
            raise _refusal(response)
        for event in _events(response):
            if "error" in event:
                raise ClientError(f"The answer broke off: {event['error'].get('message', event['error'])}")
            for choice in event.get("choices", []):
                sys.stdout.write(choice.get("delta", {}).get("content") or "")
                sys.stdout.flush()
            usage = event.get("usage") or usage
    sys.stdout.write("\n")
    sys.stdout.flush()  # before the note on stderr, also where both go into one pipe
    return usage


def _events(response: httpx2.Response) -> Iterator[dict[str, Any]]:
    for line in response.iter_lines():
        data = line.removeprefix("data:").strip() if line.startswith("data:") else ""
        if data == "[DONE]":
            return
        if data:
            yield json.loads(data)


def _refusal(response: httpx2.Response) -> ApiError:
    """The gateway speaks OpenAI's shape of errors."""
    try:
        error = response.json()["error"]
        detail, code = str(error["message"]), str(error.get("code") or error.get("type") or "error")
    except (ValueError, KeyError, TypeError):
        try:
            checked(response)
        except ApiError as exc:
            return exc
        raise
    return ApiError(
        status=response.status_code,
        code=code,
        title="Refused",
        detail=detail,
        request_id=response.headers.get("x-request-id", ""),
    )


def serve(ctx: typer.Context) -> None:
    """Serve a model folder or .gguf file on this machine with the OpenAI API (serve PATH; --help tells the options)."""
    command = [sys.executable, "-m", "runtime.engine.serve", *ctx.args]
    sys.stdout.flush()
    os.execv(command[0], command)  # noqa: S606  (the engine takes this process over, so every signal reaches it)
