"""A live web server for the tests of uploads, and a store of their own for all tests here."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from controlplane.asgi import application


@pytest.fixture(autouse=True)
def artifact_root(settings: Any, tmp_path: Path) -> Path:
    settings.ARTIFACT_ROOT = tmp_path / "artifacts"
    return tmp_path / "artifacts"


@pytest.fixture
def server(transactional_db: None) -> Iterator[str]:
    """The address of a real uvicorn that serves uploads and REST as the web process does."""
    del transactional_db
    with _serving() as address:
        yield address


@contextlib.contextmanager
def _serving() -> Iterator[str]:
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(application, lifespan="off", log_level="warning", timeout_graceful_shutdown=2)
    running = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(running.serve(sockets=[listener])), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        running.should_exit = True
        thread.join(timeout=10)
        listener.close()
