"""The command that makes join tokens for scripts."""

import json
import stat

import pytest
from django.core.management import call_command

from fleet.models import JoinToken
from tests.build.machines import FakeAgent

pytestmark = pytest.mark.django_db


def test_each_named_node_gets_a_token_that_works_in_a_private_file(tmp_path, capsys):
    target = tmp_path / "tokens.json"
    call_command("join_tokens", "one", "two", "--write", str(target))
    tokens = json.loads(target.read_text())
    assert list(tokens) == ["one", "two"]
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    said = capsys.readouterr().out
    assert not [token for token in tokens.values() if token in said]
    assert FakeAgent("one").join(tokens["one"]).id != FakeAgent("two").join(tokens["two"]).id
    assert JoinToken.objects.filter(used_at=None).count() == 0
