"""Reading ``/tokenize`` and ``/detokenize``, as vLLM names them."""

import dataclasses
from typing import Any

from runtime.engine.errors import InvalidRequest
from runtime.engine.server.openai.fields import Body
from runtime.engine.server.openai.messages import read_messages, template_extras
from runtime.engine.server.openai.params import check_tokens
from runtime.engine.server.openai.tools import Tools, read_tools


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizeCall:
    """A checked ``/tokenize``: ``prompt``, or ``messages`` with what their template is given."""

    model: str | None
    prompt: str
    special: bool
    messages: list[dict[str, Any]] | None
    tools: Tools | None
    extras: dict[str, Any]
    generation: bool
    texts: bool


def read_tokenize(data: bytes) -> TokenizeCall:
    """Read the body of ``/tokenize``.

    Raises:
        InvalidRequest: names the first field that is wrong.
    """
    body = Body(data)
    model, prompt, messages = _model(body), body.take("prompt"), body.take("messages")
    if (prompt is None) == (messages is None):
        raise InvalidRequest("Give either prompt or messages.", param="prompt")
    if prompt is not None and not isinstance(prompt, str):
        raise InvalidRequest("prompt has to be a string.", param="prompt", code="invalid_type")
    call = TokenizeCall(
        model=model,
        prompt=prompt or "",
        special=body.boolean("add_special_tokens", True),
        messages=None if messages is None else read_messages(messages),
        tools=read_tools(body) if messages is not None else None,
        extras=template_extras(body.take("chat_template_kwargs")) if messages is not None else {},
        generation=body.boolean("add_generation_prompt", True),
        texts=body.boolean("return_token_strs", False),
    )
    body.finish()
    return call


def read_detokenize(data: bytes, *, vocab_size: int) -> tuple[str | None, list[int]]:
    """Read the body of ``/detokenize``: (model, tokens).

    Raises:
        InvalidRequest: names the first field that is wrong.
    """
    body = Body(data)
    model, tokens = _model(body), body.take("tokens")
    if not isinstance(tokens, list):
        raise InvalidRequest("tokens has to be a list of tokens.", param="tokens", code="invalid_type")
    body.finish()
    return model, check_tokens(tokens, vocab_size, "tokens")


def _model(body: Body) -> str | None:
    """The model may be left out: an engine serves one."""
    model = body.take("model")
    if model is not None and not isinstance(model, str):
        raise InvalidRequest("model has to be a string.", param="model", code="invalid_type")
    return model
