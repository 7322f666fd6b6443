"""Logging never makes a process wait: not for a pipe that nobody reads, not at its end."""

import json
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
LINES = 20_000  # several times what a pipe and the queue can hold
PROGRAM = f"""
import sys
from runtime.base import logs
logs.configure(process="test")
log = logs.get("test")
for number in range({LINES}):
    log.info("line", number=number)
sys.stdout.write("done")
sys.stdout.flush()
sys.stdin.read(1)
log.info("last")
"""


def test_a_pipe_that_nobody_reads_stops_nothing_and_what_was_lost_is_said():
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(4) == b"done", "every line was logged while nobody read"
        process.stdin.write(b"x")
        process.stdin.flush()
        text = process.stderr.read().decode()
    lines = text.splitlines()
    told = [line for line in lines if "log lines were dropped" in line]
    events = [json.loads(line) for line in lines if line.startswith("{")]
    assert process.returncode == 0
    assert told
    assert sum(int(line.split()[0]) for line in told) + len(events) == LINES + 1
    assert [event["number"] for event in events if event["event"] == "line"][:3] == [0, 1, 2]


def test_a_process_that_ends_while_nobody_reads_does_not_hang():
    program = PROGRAM.replace("sys.stdin.read(1)", "pass")
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    ) as process:
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        ended = process.poll()
        process.kill()
    assert ended == 0
