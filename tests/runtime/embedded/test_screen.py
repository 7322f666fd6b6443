"""What the person sees: it outlives its reader, and its commands can be pasted as they are."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec

from runtime.embedded import sample, up
from runtime.embedded.bootstrap import Credentials
from runtime.embedded.places import REPOSITORY, Places

TALK = """
import sys
from runtime.embedded.screen import Screen

screen = Screen()
sys.stdin.read()
screen.say("one")
with screen.step("two"):
    pass
screen.panel("three", ["four"])
"""


def test_a_reader_that_went_away_ends_nothing() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as gone:
        done = subprocess.run(
            [sys.executable, "-c", TALK], cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=gone, stderr=subprocess.PIPE
        )
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_line_that_takes_the_key_out_of_the_credentials_can_be_pasted(tmp_path: Path) -> None:
    here = Places(home=tmp_path / "a home of mine")
    here.home.mkdir()
    credentials = Credentials(tenant="demo", api_key="mp_inference", manage_key="mp_manage")
    here.credentials.write_bytes(msgspec.json.format(msgspec.json.encode(credentials), indent=2))
    export, *call = up._curl(here, credentials, "smollm2", show_key=False)
    shown = subprocess.run(
        ["sh", "-c", f'{export}\nprintf %s "$MILLPOND_API_KEY"'], capture_output=True, text=True, check=True
    )
    assert shown.stdout == "mp_inference"
    assert "Bearer $MILLPOND_API_KEY" in call[0]
    assert up._curl(here, credentials, "smollm2", show_key=True)[0].count("Bearer mp_inference") == 1


def test_the_hint_to_upload_names_the_servers_that_run() -> None:
    first = sample.how_to_upload(Places(home=Path("/x"), web_port=18100, gateway_port=18101), "demo")[0]
    assert first.endswith("login --server http://127.0.0.1:18100 --gateway http://127.0.0.1:18101")
