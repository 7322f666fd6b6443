"""ID tokens: their signatures, by PyJWT, and the checks of OpenID Connect Core 3.1.3.7 (pure).

The algorithm is taken from a list of ours and must fit the kind of the key: ``none`` and shared secrets do not pass.
"""

import datetime
import hmac
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import jwt

LEEWAY_SECONDS: Final = 60
MAX_AGE_SECONDS: Final = 24 * 3600
MAX_CHARACTERS: Final = 64 * 1024
_ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512")
# The public half of an RSA or EC key. A set that shows the other half too is read without it.
_PUBLIC: Final = ("kty", "n", "e", "crv", "x", "y")
# The library's minimum for RSA is 2048 bits.
_JWS: Final = jwt.PyJWS(algorithms=_ALGORITHMS, options={"enforce_minimum_key_length": True})
# Far beyond any year; what is above it, endless or no number at all is no time.
_LAST_SECOND: Final = 1e12


class BadToken(ValueError):
    """The token cannot be taken; the text says why."""


def verified(token: str, keys_of: Callable[[str], list[dict[str, Any]]]) -> dict[str, Any]:
    """The claims of ``token``, once one of ``keys_of(kid)`` (JSON Web Keys) is found to have signed it.

    Raises:
        BadToken: it is too long, no JSON Web Signature (RFC 7515), or signed by none of the keys.
    """
    if len(token) > MAX_CHARACTERS or token.count(".") != 2:
        raise BadToken("it is no signed token")
    algorithm, kid = _header(token)
    for key in keys_of(kid):
        meant = key.get("use", "sig") == "sig" and key.get("alg", algorithm) == algorithm
        if meant and (payload := _signed(token, key, algorithm)) is not None:
            return _claims(payload)
    raise BadToken("none of the provider's keys has signed it")


def _header(token: str) -> tuple[str, str]:
    try:
        header = _JWS.get_unverified_header(token)
    except (jwt.DecodeError, UnicodeEncodeError):
        raise BadToken("it is not well encoded") from None
    except jwt.InvalidTokenError:
        raise BadToken("its header is not understood") from None
    algorithm = header.get("alg")
    if algorithm not in _ALGORITHMS:
        raise BadToken("its algorithm is not taken")
    if "crit" in header:  # the library would take one extension of its own
        raise BadToken("its header is not understood")
    return str(algorithm), header.get("kid", "")


def _signed(token: str, key: Mapping[str, Any], algorithm: str) -> bytes | None:
    """The signed bytes; ``None`` for a key that is broken, unfit for ``algorithm``, or another's."""
    try:
        public = jwt.PyJWK({name: key[name] for name in _PUBLIC if name in key}, algorithm)
        payload: bytes = _JWS.decode(token, public, algorithms=[algorithm])
    except jwt.PyJWTError:
        return None
    return payload


def _claims(payload: bytes) -> dict[str, Any]:
    try:
        found = json.loads(payload)
    except (ValueError, RecursionError):
        raise BadToken("it is not well encoded") from None
    if not isinstance(found, dict):
        raise BadToken("it is not well encoded")
    return found


def check(claims: Mapping[str, Any], *, issuer: str, audience: str, nonce: str, now: datetime.datetime) -> None:
    """Raise :class:`BadToken` unless the claims are this provider's, for us, for this sign-in, and in time."""
    if claims.get("iss") != issuer:
        raise BadToken("it is of another issuer")
    given = claims.get("aud")
    audiences = given if isinstance(given, list) else [given]
    if audience not in audiences:
        raise BadToken("it is for another client")
    if (len(audiences) > 1 or "azp" in claims) and claims.get("azp") != audience:
        raise BadToken("it was issued to another client")
    if not hmac.compare_digest(str(claims.get("nonce", "")).encode(errors="surrogatepass"), nonce.encode()):
        raise BadToken("it belongs to another sign-in")
    subject = claims.get("sub")
    if not isinstance(subject, str) or not 0 < len(subject) <= 255 or not subject.isprintable():
        raise BadToken("it names nobody")
    seconds = now.timestamp()
    expires, issued = _time(claims, "exp"), _time(claims, "iat")
    if expires + LEEWAY_SECONDS <= seconds:
        raise BadToken("it has expired")
    if not seconds - MAX_AGE_SECONDS < issued < seconds + LEEWAY_SECONDS:
        raise BadToken("its time is not now; compare the clocks")


def proved_at(claims: Mapping[str, Any]) -> float | None:
    """When the person last proved themselves to the provider, in seconds since 1970; ``None`` if it does not say."""
    return _seconds(claims.get("auth_time"))


def _time(claims: Mapping[str, Any], name: str) -> float:
    seconds = _seconds(claims.get(name))
    if seconds is None:
        raise BadToken(f"it has no {name}")
    return seconds


def _seconds(value: Any) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < _LAST_SECOND:
        return None
    return float(value)
