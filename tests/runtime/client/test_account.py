"""Signing in and out, and where the secrets are kept."""

import json
import os
import stat

import pytest

from tenants.models import UserToken
from tests.build import controlplane as build


def test_signing_in_keeps_a_private_token_that_works(signed_in, shell):
    kept = json.loads(shell.config.read_text())
    assert kept["profiles"]["default"]["token"].startswith("mpu_")
    assert stat.S_IMODE(os.stat(shell.config).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(shell.config.parent).st_mode) == 0o700
    said = shell("whoami", "-o", "json").json
    assert said["kind"] == "user"
    assert [row["slug"] for row in said["tenants"]] == ["acme"]


def test_a_wrong_password_says_so_with_code_and_request(plane, shell):
    email = build.owner_of(plane.tenant).email
    said = shell("login", "--email", email, "--password-stdin", stdin="wrong\n", want=3)
    assert "password is wrong" in said.err
    assert "wrong_credentials" in said.err
    assert "request " in said.err
    assert not shell.config.exists()


def test_without_a_terminal_the_password_has_to_come_by_stdin(plane, shell):
    said = shell("login", "--email", "x@example.org", want=2)
    assert "--password-stdin" in said.err


def test_signing_out_revokes_the_token_and_forgets_it(signed_in, shell):
    shell("logout")
    assert UserToken.objects.get().revoked_at is not None
    assert json.loads(shell.config.read_text())["profiles"]["default"]["token"] == ""
    assert "not signed in" in shell("whoami", want=3).err
    shell("logout", want=3)


def test_an_api_key_can_be_kept_and_is_never_shown(signed_in, shell):
    key = shell("keys", "create", "robot", "--scope", "manage", "-o", "json").json["key"]
    shell("logout")
    said = shell("login", "--key", stdin=key + "\n")
    assert key not in said.out + said.err
    assert shell("whoami", "-o", "json").json["kind"] == "key"


def test_an_inference_key_is_kept_for_the_gateway(signed_in, shell):
    key = shell("keys", "create", "app").out.strip()
    shell("login", "--key", stdin=key + "\n")
    profile = json.loads(shell.config.read_text())["profiles"]["default"]
    assert profile["key"] == key
    assert profile["token"].startswith("mpu_"), "the person stays signed in beside it"
    assert shell("whoami", "-o", "json").json["kind"] == "user"


def test_profiles_are_kept_apart(signed_in, shell):
    admin = build.make_user(admin=True)
    shell("login", "--profile", "admin", "--email", admin.email, "--password-stdin", stdin=build.PASSWORD)
    assert shell("whoami", "-o", "json").json["is_platform_admin"]
    assert not shell("--profile", "default", "whoami", "-o", "json").json["is_platform_admin"]
    assert "no profile 'other'" in shell("whoami", "--profile", "other", want=2).err


def test_variables_win_over_the_profile(signed_in, shell):
    key = shell("keys", "create", "robot", "--scope", "manage").out.strip()
    shell.set(MILLPOND_API_KEY=key)
    assert shell("whoami", "-o", "json").json["label"] == "robot"


def test_an_inference_key_in_the_environment_leaves_rest_to_who_is_signed_in(signed_in, shell):
    shell.set(MILLPOND_API_KEY=shell("keys", "create", "app").out.strip())
    assert shell("whoami", "-o", "json").json["kind"] == "user"
    shell.set(MILLPOND_API_KEY="mp_unknown")
    assert "unknown, expired or revoked" in shell("whoami", want=3).err


def test_what_is_kept_for_a_server_goes_to_no_other(signed_in, shell):
    kept = shell.config.read_text()
    for words in (["whoami"], ["logout"]):
        assert "http://127.0.0.1:9" in shell(*words, "--server", "http://127.0.0.1:9", want=3).err
    assert shell.config.read_text() == kept


def test_with_several_tenants_one_has_to_be_named_and_can_be_kept(signed_in, shell):
    build.make_tenant("beta", owner=build.owner_of(signed_in.tenant))
    said = shell("models", want=2)
    assert "acme, beta" in said.err
    shell("models", "--tenant", "beta")
    shell("tenants", "--use", "acme")
    shell("models")


@pytest.mark.parametrize("home", ["", "/proc/nowhere"])
def test_where_nothing_can_be_kept_the_variable_is_named(shell, monkeypatch, home):
    monkeypatch.delenv("MILLPOND_CONFIG")
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("HOME", home)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    shell.set(MILLPOND_SERVER="http://127.0.0.1:9")
    said = shell("tenants", "--use", "x", want=2 if not home else 3)
    assert "MILLPOND_" in said.err


def test_a_configuration_that_cannot_be_written_names_the_variable(signed_in, shell, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    token = json.loads(shell.config.read_text())["profiles"]["default"]["token"]
    shell.set(MILLPOND_CONFIG=blocked / "conf.json", MILLPOND_TOKEN=token)
    said = shell("tenants", "--use", "acme", want=2)
    assert "cannot be written" in said.err
    assert "MILLPOND_CONFIG" in said.err


def test_a_broken_configuration_is_not_overwritten(shell):
    shell.config.parent.mkdir()
    shell.config.write_text("{")
    assert "no configuration of millpond" in shell("whoami", want=2).err
    assert shell.config.read_text() == "{"


def test_nobody_answers(shell):
    shell.set(MILLPOND_SERVER="http://127.0.0.1:9", MILLPOND_TOKEN="mpu_x")
    said = shell("whoami", want=5)
    assert "cannot be reached" in said.err
    assert "MILLPOND_SERVER" in said.err


@pytest.mark.parametrize("server", ["nonsense", "ftp://x", "http://"])
def test_a_server_that_is_no_url_is_named(shell, server):
    shell.set(MILLPOND_SERVER=server, MILLPOND_TOKEN="mpu_x")
    assert "no URL of a server" in shell("whoami", want=5).err
