"""``python -m runtime.gateway``: one gateway process. Settings come from the environment (see :mod:`settings`)."""

import resource
import signal
import socket
import sys
from typing import NoReturn

import msgspec
import uvicorn

from runtime.base import lifeline, logs
from runtime.gateway.app import App
from runtime.gateway.core import build
from runtime.gateway.files import FolderInUse, hold, write_private
from runtime.gateway.http import bounded
from runtime.gateway.settings import Settings, SettingsError, load

log = logs.get(__name__)


def main() -> None:
    """Run until SIGTERM or SIGINT, then drain: no new connections, streams finish within ``drain_seconds``."""
    try:
        settings = load()
    except SettingsError as exc:
        _fail(str(exc))
    logs.configure(process="gateway", json=settings.log_json)
    lifeline.watch()
    _raise_file_limit()
    try:
        hold(settings.directory)
        listener = _bind(settings)
        url = settings.url or _url_of(listener)
        core = build(settings, url=url)
        write_private(settings.directory / "address.json", msgspec.json.encode({"url": url}))
    except (FolderInUse, OSError) as exc:
        _fail(str(exc))
    server = uvicorn.Server(config_of(settings, App(core)))
    # uvicorn raises the signal again once it has shut down; by then there is nothing left to interrupt.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    log.info("gateway starts", url=url, directory=str(settings.directory))
    server.run(sockets=[listener])


def config_of(settings: Settings, app: App) -> uvicorn.Config:
    """uvicorn as the gateway needs it."""
    return uvicorn.Config(
        app,
        http=bounded(settings.max_head_bytes, settings.head_timeout_seconds),
        loop="uvloop",
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=max(1, round(settings.drain_seconds)),
        backlog=2048,
    )


def _bind(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # The protocol is named because event loops set TCP_NODELAY only on sockets that say TCP: 40 ms a small write.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as exc:
        listener.close()
        raise OSError(
            f"cannot listen on {settings.host}:{settings.port} ({exc.strerror}); "
            "set MILLPOND_GATEWAY_HOST and MILLPOND_GATEWAY_PORT"
        ) from None
    return listener


def _url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):  # noqa: S104 - asked about, not bound
        host = socket.gethostname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _raise_file_limit() -> None:
    """Every stream takes two descriptors; take as many as the system allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _fail(message: str) -> NoReturn:
    sys.stderr.write(f"gateway: {message}\n")
    raise SystemExit(2)


if __name__ == "__main__":
    main()
