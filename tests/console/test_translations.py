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


def catalogue() -> dict[Key, str]:
    """The .po file by context and text. It has one plural form, so one translation each."""
    found: dict[Key, str] = {}
    text = (LOCALE / "django.po").read_text()
    assert "#, fuzzy" not in text
    assert "#~" not in text
    for block in text.split("\n\n")[1:]:
        parts = {
            name: "".join(ast.literal_eval(line) for line in lines.split("\n") if line) for name, lines in _parts(block)
        }
        found[parts.get("msgctxt"), parts["msgid"]] = parts.get("msgstr[0]", parts.get("msgstr", ""))
    return found


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


def test_translations_keep_their_placeholders() -> None:
    wrong = []
    for (_context, source), translated in catalogue().items():
        wanted, given = (set(re.findall(r"%\((\w+)\)s", text)) for text in (source, translated))
        if given - wanted - {"total"} or len(given) < len(wanted) - 0:
            wrong.append((source, translated))
    assert not wrong, wrong


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
