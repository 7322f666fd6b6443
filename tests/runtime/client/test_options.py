"""Options of every command stand anywhere; names are read as people write them."""

import pytest

from runtime.base.version import VERSION
from runtime.client.errors import UsageError
from runtime.client.main import command_line, hoisted, run
from runtime.client.naming import ModelRef, model_ref


@pytest.mark.parametrize(
    ("words", "want"),
    [
        ("models -o json", "-o json models"),
        ("upload x --tenant t --model m", "--tenant t upload x --model m"),
        ("upload x --tenant=t -q", "--tenant=t -q upload x"),
        ("-o json status", "-o json status"),
        ("chat m -- -o", "chat m -- -o"),
        ("-t t serve path -o x", "-t t serve path -o x"),
        ("status -o", "status -o"),
        ("deploy serve -q", "-q deploy serve"),
    ],
)
def test_options_of_every_command_are_moved_to_the_front(words, want):
    assert hoisted(words.split()) == want.split()


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("m", ModelRef("m", None)),
        ("m:3", ModelRef("m", 3)),
        ("m:champion", ModelRef("m", "champion")),
        ("m@champion", ModelRef("m", "champion")),
        ("m@3", ModelRef("m", "3")),
        ("org.m-1:12", ModelRef("org.m-1", 12)),
    ],
)
def test_references_to_models(text, want):
    assert model_ref(text) == want


@pytest.mark.parametrize("text", ["", ":", "m:", ":3", "@x", "m@"])
def test_what_names_no_model(text):
    with pytest.raises(UsageError, match="names no model"):
        model_ref(text)


def leaves(command, words=()):
    """Every command that does something, with the words that call it."""
    below = getattr(command, "commands", {})
    return [leaf for name, each in below.items() for leaf in leaves(each, (*words, name))] or [(words, command)]


def test_help_names_every_option_whole_in_eighty_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    made = command_line()
    for words, command in leaves(made):
        if words == ("serve",):
            continue  # the engine's own help, which needs torch
        made(args=[*words, "--help"], prog_name="millpond", standalone_mode=False)
        shown = capsys.readouterr().out
        options = [name for param in command.params for name in (*param.opts, *param.secondary_opts) if name[0] == "-"]
        assert [name for name in options if name not in shown] == [], words


def test_the_version_is_the_products(capsys):
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"millpond {VERSION}\n"
