"""A small OpenID Connect provider on the loopback: discovery, authorization code with PKCE, signed ID tokens, keys.

A thread serves it. ``claims`` are what the next sign-in says; ``lie`` spoils the next token in one way.
"""

import base64
import contextlib
import hashlib
import hmac
import json
import secrets
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

CLIENT = "millpond"
CLIENT_SECRET = "a:secret/with signs"


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _number(value: int) -> str:
    return _b64(value.to_bytes((value.bit_length() + 7) // 8))


class Idp:
    """The provider: its address, and what it is told to say."""

    def __init__(self) -> None:
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.claims: dict[str, Any] = {}
        self.lie = ""
        self.codes: dict[str, dict[str, str]] = {}
        self.asked: list[str] = []
        idp = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                idp.asked.append(self.path.partition("?")[0])
                if self.path.startswith("/authorize"):
                    to = idp.authorize(dict(parse_qsl(urlsplit(self.path).query)))
                    self.send_response(302)
                    self.send_header("Location", to)
                    self.end_headers()
                    return
                body = {"/.well-known/openid-configuration": idp.document, "/keys": idp.keys}.get(self.path)
                self._answer(200 if body else 404, body() if body else {})

            def do_POST(self) -> None:
                form = {
                    k: v[0] for k, v in parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode()).items()
                }
                self._answer(*idp.token(form, self.headers.get("Authorization", "")))

            def _answer(self, status: int, body: dict[str, Any]) -> None:
                text = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *args: Any) -> None:
                """Quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.issuer = f"http://127.0.0.1:{self.server.server_address[1]}"

    def document(self) -> dict[str, Any]:
        return {
            "issuer": "http://127.0.0.1:1" if self.lie == "issuer" else self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": "http://sso.example.org/token" if self.lie == "plain http" else f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
        }

    def keys(self) -> dict[str, Any]:
        public = self.key.public_key().public_numbers()
        return {"keys": [{"kty": "RSA", "kid": "k1", "use": "sig", "n": _number(public.n), "e": _number(public.e)}]}

    def authorize(self, asked: dict[str, str]) -> str:
        """What the browser comes back with, once the person has signed in there."""
        assert asked["code_challenge_method"] == "S256"
        code = secrets.token_urlsafe(16)
        self.codes[code] = asked
        return f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state']})}"

    def token(self, form: dict[str, str], authorization: str) -> tuple[int, dict[str, Any]]:
        asked = self.codes.pop(form.get("code", ""), None)
        wanted = f"Basic {base64.b64encode(b'millpond:a%3Asecret%2Fwith%20signs').decode()}"
        challenge = _b64(hashlib.sha256(form.get("code_verifier", "").encode()).digest())
        if asked is None or challenge != asked["code_challenge"] or authorization != wanted:
            return 400, {"error": "invalid_grant"}
        now = int(time.time())
        claims = {
            "iss": self.issuer, "aud": CLIENT, "nonce": asked["nonce"], "iat": now, "exp": now + 300,
            "auth_time": now if "max_age" in asked else now - 3600, **self.claims,
        }  # fmt: skip
        return 200, {"access_token": "unused", "token_type": "Bearer", "id_token": self.sign(claims)}

    def sign(self, claims: dict[str, Any]) -> str:
        spoiled = {
            "audience": {"aud": "somebody-else"}, "two audiences": {"aud": [CLIENT, "other"]}, "nonce": {"nonce": "x"},
            "expired": {"exp": claims["iat"] - 3600}, "future": {"iat": claims["iat"] + 3600},
            "no subject": {"sub": ""},
        }.get(self.lie, {})  # fmt: skip
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048) if self.lie == "signature" else self.key
        header = {"alg": "none" if self.lie == "unsigned" else "RS256", "kid": "k1"}
        message = f"{_b64(json.dumps(header).encode())}.{_b64(json.dumps({**claims, **spoiled}).encode())}"
        if self.lie == "unsigned":
            return f"{message}."
        if self.lie == "shared secret":  # the public key as if it were a secret of both
            header = {"alg": "HS256", "kid": "k1"}
            message = f"{_b64(json.dumps(header).encode())}.{_b64(json.dumps(claims).encode())}"
            pem = self.key.public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
            return f"{message}.{_b64(hmac.new(pem, message.encode(), hashlib.sha256).digest())}"
        return f"{message}.{_b64(key.sign(message.encode(), padding.PKCS1v15(), hashes.SHA256()))}"


@contextlib.contextmanager
def running() -> Iterator[Idp]:
    """Serve until the end of the block."""
    idp = Idp()
    thread = threading.Thread(target=idp.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield idp
    finally:
        idp.server.shutdown()
        idp.server.server_close()
        thread.join()
