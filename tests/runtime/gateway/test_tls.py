"""TLS by files, and new files without a restart."""

import asyncio
import datetime
import signal
import ssl

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from runtime.gateway.__main__ import config_of, reload_certificate
from runtime.gateway.app import App
from runtime.gateway.core import build
from runtime.gateway.settings import Settings, SettingsError, load
from tests.build.gateway_peers import ask, serving, until
from tests.runtime.gateway.test_process import AUTH, Process


async def test_new_connections_see_new_files_and_broken_ones_change_nothing(control, tmp_path):
    a_certificate(tmp_path, "first")
    files = {"tls_cert_file": tmp_path / "cert.pem", "tls_key_file": tmp_path / "key.pem"}
    settings = Settings(control_url=control[1], directory=tmp_path / "gateway", **files)
    config = config_of(settings, App(build(settings, url="https://gateway.test")))
    config.load()
    async with serving(config) as url:
        port = int(url.rsplit(":", 1)[1])
        assert await presented(port) == "first"
        a_certificate(tmp_path, "second")
        assert await presented(port) == "first"
        reload_certificate(settings, config)
        assert await presented(port) == "second"
        (tmp_path / "cert.pem").write_text("nonsense")
        reload_certificate(settings, config)
        assert await presented(port) == "second"


def test_a_certificate_without_its_key_is_refused():
    with pytest.raises(SettingsError, match="MILLPOND_GATEWAY_TLS_KEY_FILE"):
        load({"MILLPOND_HOME": "/srv/pond", "MILLPOND_GATEWAY_TLS_CERT_FILE": "/srv/cert.pem"})


def a_certificate(folder, name):
    """A self-signed certificate for localhost and its key, as two files."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = serialization.PrivateFormat.PKCS8
    (folder / "cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, private, serialization.NoEncryption())
    )


async def presented(port):
    """Common name of the certificate that a new connection is shown."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    shown = x509.load_der_x509_certificate(writer.get_extra_info("ssl_object").getpeercert(binary_form=True))
    writer.close()
    return shown.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value


async def test_a_reload_under_load_fails_no_call(control, tmp_path):
    a_certificate(tmp_path, "first")
    process = Process(
        tmp_path,
        control[1],
        MILLPOND_GATEWAY_TLS_CERT_FILE=str(tmp_path / "cert.pem"),
        MILLPOND_GATEWAY_TLS_KEY_FILE=str(tmp_path / "key.pem"),
    )
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connector = aiohttp.TCPConnector(ssl=context)
    await process.start(ssl_context=context)
    port = int(process.url.rsplit(":", 1)[1])
    over = asyncio.Event()
    statuses: list[int] = []

    async def caller(number: int) -> None:
        async with aiohttp.ClientSession(connector=connector, connector_owner=False) as http:
            while not over.is_set():
                url = process.url + "/v1/chat/completions"
                headers = {**AUTH, "connection": "close" if number % 2 else "keep-alive"}
                async with http.post(url, json=ask(stream=number % 4 > 1), headers=headers) as response:
                    assert b"tok2" in await response.read()
                    statuses.append(response.status)

    try:
        async with connector, asyncio.TaskGroup() as group:
            for number in range(8):
                group.create_task(caller(number))
            for name in ("second", "third", "fourth"):
                seen = len(statuses)
                await until(lambda: len(statuses) > seen + 20, "the load goes on")  # noqa: B023 - awaited in this round
                a_certificate(tmp_path, name)
                process.send(signal.SIGHUP)
                async with asyncio.timeout(15):
                    while await presented(port) != name:  # noqa: ASYNC110 - another process sets no event of ours
                        await asyncio.sleep(0.02)
            over.set()
    finally:
        await process.end()
    assert set(statuses) == {200}
