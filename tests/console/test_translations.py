"""Both languages are complete: every text in code and templates is translated, and the compiled catalogue is fresh."""

import ast
import gettext
import re
from pathlib import Path

import pytest
from django.utils.translation.template import templatize

CONSOLE = Path(__file__).resolve().parents[2] / "console"
LOCALE = CONSOLE / "locale" / "zh_Hans" / "LC_MESSAGES"
PLAIN = {"gettext", "gettext_lazy", "gettext_noop", "ngettext", "ngettext_lazy", "_"}
WITH_CONTEXT = {"pgettext", "pgettext_lazy", "npgettext", "npgettext_lazy"}
Key = tuple[str | None, str]


def entries() -> list[dict[str, str]]:
    """What the .po file holds, each entry by its keywords (msgctxt, msgid, msgid_plural, msgstr, msgstr[0])."""
    text = (LOCALE / "django.po").read_text()
    assert "#, fuzzy" not in text
    assert "#~" not in text
    return [
        {name: "".join(ast.literal_eval(line) for line in lines.split("\n") if line) for name, lines in _parts(block)}
        for block in text.split("\n\n")[1:]
    ]


def catalogue() -> dict[Key, str]:
    """The .po file by context and text. It has one plural form, so one translation each."""
    return {(parts.get("msgctxt"), parts["msgid"]): _said(parts) for parts in entries()}


def _said(parts: dict[str, str]) -> str:
    return parts.get("msgstr[0]", parts.get("msgstr", ""))


def _parts(block: str) -> list[tuple[str, str]]:
    return re.findall(r'^(msg\w+(?:\[\d\])?) ((?:".*"\n?)+)', block, re.MULTILINE)


def texts() -> dict[Key, str]:
    """Every translatable text of the console, with the file it stands in."""
    found: dict[Key, str] = {}
    for path in sorted(CONSOLE.rglob("*.py")):
        for key in _called(ast.parse(path.read_text())):
            found[key] = path.name
    for path in sorted((CONSOLE / "templates").rglob("*.html")):
        for line in re.findall(
            r"\b(?:n?p?gettext)\((?:[^()]|\([^()]*\))*\)", templatize(path.read_text(), origin=path.name)
        ):
            for key in _called(ast.parse(line.strip())):
                found[key] = path.name
    return found


def _called(tree: ast.AST) -> list[Key]:
    found: list[Key] = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        words = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        if node.func.id in PLAIN and words:
            found.append((None, words[0]))
        elif node.func.id in WITH_CONTEXT and len(words) > 1:
            found.append((words[0], words[1]))
    return found


def test_every_text_is_translated() -> None:
    known = catalogue()
    missing = sorted(f"{where}: {key}" for key, where in texts().items() if not known.get(key))
    assert not missing, "\n".join(missing)


def test_nothing_is_translated_that_nobody_says() -> None:
    said = texts()
    assert len(said) > 500
    idle = [key for key in catalogue() if key not in said]
    assert not idle, idle


def _misplaced(parts: dict[str, str]) -> bool:
    """Whether an entry's translation fills in other things than its source.

    Chinese says one sentence for every number, so that sentence has to carry what the source's plural carries. The
    singular may leave the number out ("The endpoint answers.") and never names what the plural does not.
    """
    names = {name: set(re.findall(r"%\((\w+)\)[sd]", text)) for name, text in parts.items()}
    wanted = names.get("msgid_plural", names["msgid"])
    return not names["msgid"] <= wanted or names.get("msgstr[0]", names.get("msgstr")) != wanted


def test_translations_keep_their_placeholders() -> None:
    wrong = [(parts["msgid"], _said(parts)) for parts in entries() if _misplaced(parts)]
    assert not wrong, wrong


@pytest.mark.parametrize(
    ("parts", "wrong"),
    [
        ({"msgid": "%(a)s is here", "msgstr": "%(a)s 在"}, False),
        ({"msgid": "%(a)s is here", "msgstr": "在"}, True),
        ({"msgid": "It is here", "msgstr": "%(a)s 在"}, True),
        ({"msgid": "%(a)s is here", "msgstr": "%(b)s 在"}, True),
        ({"msgid": "One is here", "msgid_plural": "%(n)s are here", "msgstr[0]": "%(n)s 在"}, False),
        ({"msgid": "One is here", "msgid_plural": "%(n)s are here", "msgstr[0]": "在"}, True),
        ({"msgid": "%(a)s is here", "msgid_plural": "%(n)s are here", "msgstr[0]": "%(n)s 在"}, True),
    ],
)
def test_what_counts_as_a_wrong_placeholder(parts: dict[str, str], wrong: bool) -> None:
    assert _misplaced(parts) is wrong


def test_the_compiled_catalogue_is_fresh() -> None:
    with (LOCALE / "django.mo").open("rb") as file:
        compiled = gettext.GNUTranslations(file)
    stale = []
    for (context, source), translated in catalogue().items():
        given = compiled.pgettext(context, source) if context else compiled.gettext(source)
        plural = compiled.npgettext(context, source, source, 2) if context else compiled.ngettext(source, source, 2)
        if translated not in (given, plural):
            stale.append(source)
    assert not stale, "run msgfmt -o django.mo django.po in the locale folder"


@pytest.mark.parametrize("path", sorted((CONSOLE / "templates").rglob("*.html")), ids=lambda path: path.name)
def test_templates_carry_no_inline_style_or_script(path: Path) -> None:
    text = re.sub(r"\{[%{].*?[%}]\}", "", path.read_text(), flags=re.DOTALL)
    assert not re.search(r"\sstyle=|\son\w+=|hx-on|javascript:", text)
    assert not re.search(r"<script(?![^>]*\bsrc=)", text)
