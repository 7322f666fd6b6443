"""``python -m runtime.gateway``: one gateway process. Settings come from the environment (see :mod:`settings`)."""

import gc
import resource
import signal
import socket
import ssl
import sys
from typing import NoReturn

import msgspec
import uvicorn

from runtime.base import lifeline, listening, logs
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
        url = settings.url or _url_of(listener, "https" if settings.tls_cert_file else "http")
        core = build(settings, url=url)
        write_private(settings.directory / "address.json", msgspec.json.encode({"url": url}))
    except (FolderInUse, OSError) as exc:
        _fail(str(exc))
    config = config_of(settings, App(core))
    try:
        config.load()
    except OSError as exc:  # ssl.SSLError is one
        _fail(f"the TLS certificate or key cannot be used ({exc}); see MILLPOND_GATEWAY_TLS_CERT_FILE and _KEY_FILE")
    server = uvicorn.Server(config)
    # uvicorn raises the signal again once it has shut down; by then there is nothing left to interrupt.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    _spare_the_collector()
    signal.signal(signal.SIGHUP, lambda *_: reload_certificate(settings, config))
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
        ssl_certfile=settings.tls_cert_file,
        ssl_keyfile=str(settings.tls_key_file) if settings.tls_key_file else None,
    )


def reload_certificate(settings: Settings, config: uvicorn.Config) -> None:
    """Serve new connections with what the certificate files hold now; when they cannot be used, with what was there.

    Every other setting takes a restart: with ``reuse_port`` a successor takes the port before this process drains.
    """
    if config.ssl is None or settings.tls_cert_file is None or settings.tls_key_file is None:
        log.info("nothing to reload: no TLS files are set")
        return
    try:
        # First into a context of its own: one that fails half way must not spoil the one that serves.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.tls_cert_file, settings.tls_key_file)
        config.ssl.load_cert_chain(settings.tls_cert_file, settings.tls_key_file)
    except OSError as exc:
        log.exception("TLS certificate not reloaded", error=str(exc))
        return
    log.info("TLS certificate reloaded", path=str(settings.tls_cert_file))


def _bind(settings: Settings) -> socket.socket:
    try:
        return listening.bind(settings.host, settings.port, reuse_port=settings.reuse_port)
    except OSError as exc:
        raise OSError(
            f"cannot listen on {settings.host}:{settings.port} ({exc.strerror}); "
            "set MILLPOND_GATEWAY_HOST and MILLPOND_GATEWAY_PORT"
        ) from None


def _url_of(listener: socket.socket, scheme: str) -> str:
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):  # noqa: S104 - asked about, not bound
        host = socket.gethostname()
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _raise_file_limit() -> None:
    """Every stream takes two descriptors; take as many as the system allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _spare_the_collector() -> None:
    """What is loaded by now stays; a request makes many objects and no cycles, so looking for them may wait."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def _fail(message: str) -> NoReturn:
    sys.stderr.write(f"gateway: {message}\n")
    raise SystemExit(2)


if __name__ == "__main__":
    main()
