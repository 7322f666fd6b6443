"""Icons, states, and what the rooms say, for templates. SVG comes with attributes only: no inline style, ever."""

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import get_language

from console.presenters import codewords, glyphs, icons, reasons, sentences

register = template.Library()
_HIDDEN = SafeString(' class="sr"')


@register.simple_tag
def icon(name: str, extra: str = "") -> SafeString:
    """A line icon; decorative, so it needs a word or a label beside it."""
    markup = mark_safe(icons.ICONS[name])  # noqa: S308  (our own constants)
    return format_html(
        '<svg class="icon{}" viewBox="0 0 16 16" aria-hidden="true">{}</svg>', extra and f" {extra}", markup
    )


@register.simple_tag
def mark(size: int = 22) -> SafeString:
    """The mark of the product."""
    markup = mark_safe(icons.MARK)  # noqa: S308  (our own constant)
    return format_html(
        '<svg width="{}" height="{}" viewBox="0 0 18 18" aria-hidden="true">{}</svg>', size, size, markup
    )


@register.simple_tag
def state(kind: str, name: object, word: str = "", title: str = "", only_icon: bool = False) -> SafeString:
    """Icon, word and colour of a state; ``title`` is what hovering says (reason, sentence, since when)."""
    glyph = glyphs.of(kind, str(name))
    markup = mark_safe(glyph.markup)  # noqa: S308  (our own constants)
    text = word or str(glyph.word)
    hint = codewords.coded(sentences.said(title).text).text or (text if only_icon else "")
    said = format_html(' title="{}"', hint) if hint else ""
    return format_html(
        '<span class="state {}"{}><svg viewBox="0 0 14 14" aria-hidden="true">{}</svg><span{}>{}</span></span>',
        glyph.tone, said, markup, _HIDDEN if only_icon else "", text,
    )  # fmt: skip


@register.simple_tag
def said(sentence: str) -> str | SafeString:
    """A room's sentence in the visitor's language; where it cannot be, marked as English."""
    found = sentences.said(sentence or "")
    if found.is_translated or not found.text:
        return found.text
    return format_html('<span lang="en">{}</span>', found.text)


@register.simple_tag
def plan_refusal(sentence: str, code: str = "") -> str | SafeString:
    """Why a way over several devices is not taken: the sentence, or where it is not known the code in words with it."""
    found = sentences.said(sentence or "")
    if found.is_translated or not code or (get_language() or "en").startswith("en"):
        return said(sentence)
    return format_html('{} (<span lang="en">{}</span>)', reasons.word(code), found.text)


@register.simple_tag
def code(name: str, classes: str = "", *, tag: str = "span", title: str = "") -> SafeString | str:
    """A code of a room: as it is in English, else in words with the code (or ``title``, a sentence) behind them."""
    if not name:
        return ""
    found = codewords.coded(name)
    hint = sentences.said(title).text or ("" if found.is_code else name)
    looks = " ".join(part for part in ("mono" if found.is_code else "", classes) if part)
    attributes = format_html(' class="{}"', looks) if looks else ""
    said = format_html(' title="{}"', hint) if hint else ""
    wrapped = mark_safe(tag)  # noqa: S308  (a word of ours in a template)
    return format_html("<{}{}{}>{}</{}>", wrapped, attributes, said, found.text, wrapped)


@register.filter
def code_text(name: str) -> str:
    """The same as text alone; what is no code of a room stays as it is."""
    return codewords.coded(name).text


@register.simple_tag
def said_plain(sentence: str) -> str:
    """The same for an attribute, which cannot be marked."""
    return sentences.said(sentence or "").text


@register.simple_tag
def glyph(kind: str, name: object, title: str = "") -> SafeString:
    """The bare shape of a state with its top left corner moved by half, to stand inside another SVG."""
    found = glyphs.of(kind, str(name))
    markup = mark_safe(found.markup)  # noqa: S308  (our own constants)
    return format_html('<g class="{}" transform="translate(-7 0)"><title>{}</title>{}</g>', found.tone, title, markup)
