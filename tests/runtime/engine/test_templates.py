"""Chat templates are strangers' programs: rendered as Hugging Face does, and killed when they misbehave."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import transformers

from runtime.engine.templates.renderer import TemplateFailed, TemplateRenderer
from tests.build.models import CHAT_TEMPLATE, tiny_tokenizer

MESSAGES = [{"role": "user", "content": "hi 水 <b>"}, {"role": "assistant", "content": ""}]
VARIABLES: dict[str, Any] = {"messages": MESSAGES, "add_generation_prompt": True}

ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
FANCY = """
{%- if messages[0]['role'] == 'system' %}{{ messages[0]['content'] | trim }}{%- endif %}
{%- for m in messages %}
    {%- if loop.index0 > 5 %}{% break %}{% endif %}
    {% generation %}{{ bos_token }}{{ m | tojson }}{% endgeneration %}
{%- endfor %}
{%- if tools is not none %}{{ tools | length }} tools{% endif %}
{%- set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}
"""


@pytest.fixture
async def made() -> AsyncIterator[list[TemplateRenderer]]:
    """Renderers to close at the end."""
    renderers: list[TemplateRenderer] = []
    yield renderers
    for renderer in renderers:
        await renderer.close()


@pytest.mark.parametrize("template", [CHAT_TEMPLATE, FANCY], ids=["plain", "fancy"])
async def test_the_same_text_as_transformers(template: str, made: list[TemplateRenderer]) -> None:
    tokenizer: transformers.PreTrainedTokenizerFast = tiny_tokenizer()
    tokenizer.chat_template = template
    want = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, tokenize=False)
    renderer = TemplateRenderer(template, {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"})
    made.append(renderer)
    assert await renderer.render(VARIABLES) == want


@pytest.mark.parametrize(
    ("template", "why"),
    [
        pytest.param(ENDLESS, "longer than 1 seconds|stopped by a limit", id="endless"),
        pytest.param("{{ 'a' * (10 ** 10) }}", "", id="huge constant"),
        pytest.param("{% set x = messages[0]['content'] * 2000000000 %}{{ x }}", "memory", id="memory"),
        pytest.param("{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}", "longer than", id="long text"),
        pytest.param("{{ ''.__class__.__mro__ }}", "", id="escape"),
        pytest.param("{{ messages.append(1) }}", "", id="changes its input"),
        pytest.param("{{ raise_exception('roles must alternate') }}", "roles must alternate", id="refuses"),
        pytest.param("{% if %}", "does not compile", id="syntax"),
        pytest.param("{{ missing.field.deeper }}", "undefined", id="undefined"),
    ],
)
async def test_hostile_and_broken_templates_fail_alone(template: str, why: str, made: list[TemplateRenderer]) -> None:
    renderer = TemplateRenderer(template, {}, render_seconds=1.0, memory_bytes=256 << 20)
    made.append(renderer)
    with pytest.raises(TemplateFailed, match=why or None) as failed:
        await renderer.render(VARIABLES)
    assert failed.value.status == 400


async def test_a_killed_worker_is_replaced(made: list[TemplateRenderer]) -> None:
    template = "{% if messages[0]['content'] == 'loop' %}" + ENDLESS + "{% endif %}fine"
    renderer = TemplateRenderer(template, {}, render_seconds=1.0)
    made.append(renderer)
    loop = {"messages": [{"role": "user", "content": "loop"}]}
    results = await asyncio.gather(renderer.render(loop), renderer.render(VARIABLES), return_exceptions=True)
    assert isinstance(results[0], TemplateFailed)
    assert results[1] == "fine"
    assert renderer.restarts == 1


async def test_a_cancelled_render_leaves_no_answer_for_the_next(made: list[TemplateRenderer]) -> None:
    renderer = TemplateRenderer("{{ messages[0]['content'] }}", {})
    made.append(renderer)
    assert await renderer.render({"messages": [{"content": "first"}]}) == "first"
    for _ in range(3):
        task = asyncio.create_task(renderer.render({"messages": [{"content": "cancelled"}]}))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert await renderer.render({"messages": [{"content": "next"}]}) == "next"
