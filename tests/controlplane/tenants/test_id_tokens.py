"""ID tokens: which signatures and claims are taken, and what is said of the others."""

import base64
import datetime
import functools
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from tenants.openid import tokens

CURVES = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}
TAKEN = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", *CURVES]
CLAIMS = {"sub": "s-1"}
NOW = datetime.datetime(2026, 11, 1, tzinfo=datetime.UTC)

# RFC 7515, appendices A.2 and A.3: tokens and keys that nobody here has made.
RFC_CLAIMS = "eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ"
RFC_RSA_KEY = {
    "kty": "RSA",
    "e": "AQAB",
    "n": "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SF"
    "d2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTB"
    "EMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2"
    "PAcDTW9gb54h4FRWyuXpoQ",
}
RFC_RSA = (
    f"eyJhbGciOiJSUzI1NiJ9.{RFC_CLAIMS}."
    "cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CU"
    "Ar7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_d"
    "O--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0ig"
    "cN_IoypGlUPQGe77Rw"
)
RFC_EC_KEY = {
    "kty": "EC",
    "crv": "P-256",
    "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
    "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0",
}
RFC_EC = (
    f"eyJhbGciOiJFUzI1NiJ9.{RFC_CLAIMS}."
    "DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q"
)


@functools.cache
def _key(kind: str, bits: int) -> Any:
    return ec.generate_private_key(CURVES[kind]) if kind in CURVES else rsa.generate_private_key(65537, bits)


def private(algorithm: str, bits: int = 2048) -> Any:
    """A key that signs by ``algorithm``; one for all of RSA."""
    return _key(algorithm if algorithm in CURVES else "RSA", bits)


def published(algorithm: str, bits: int = 2048, **more: Any) -> dict[str, Any]:
    kind = jwt.get_algorithm_by_name(algorithm)
    return {**kind.to_jwk(private(algorithm, bits).public_key(), as_dict=True), **more}


def signed(
    algorithm: str = "RS256", bits: int = 2048, payload: bytes = json.dumps(CLAIMS).encode(), **header: Any
) -> str:
    return jwt.PyJWS().encode(payload, private(algorithm, bits), algorithm, headers=header)


def b64(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def why(token: str, *keys: dict[str, Any]) -> str:
    with pytest.raises(tokens.BadToken) as said:
        tokens.verified(token, lambda kid: list(keys))
    return str(said.value)


@pytest.mark.parametrize(("token", "key"), [(RFC_RSA, RFC_RSA_KEY), (RFC_EC, RFC_EC_KEY)], ids=["RS256", "ES256"])
def test_the_standards_own_tokens_are_taken_by_their_keys_alone(token: str, key: dict[str, Any]) -> None:
    assert tokens.verified(token, lambda kid: [key])["iss"] == "joe"
    head, claims, signature = token.split(".")
    assert why(f"{head}.{b64({'iss': 'eve'})}.{signature}", key) == "none of the provider's keys has signed it"
    assert why(f"{head}.{claims}.", key) == "none of the provider's keys has signed it"


@pytest.mark.parametrize("algorithm", TAKEN)
def test_a_key_signs_by_the_algorithm_and_for_the_use_that_it_names(algorithm: str) -> None:
    token = signed(algorithm)
    for more in ({}, {"use": "sig"}, {"alg": algorithm}):
        assert tokens.verified(token, lambda kid, more=more: [published(algorithm, **more)]) == CLAIMS
    other = "RS512" if algorithm == "RS256" else "RS256"
    for more in ({"use": "enc"}, {"alg": other}, {"kty": "oct"}, {"kty": "EC" if algorithm[0] != "E" else "RSA"}):
        assert why(token, published(algorithm, **more)) == "none of the provider's keys has signed it"


def test_a_set_is_searched_past_keys_that_are_broken_or_of_others() -> None:
    broken: list[dict[str, Any]] = [
        {}, {"kty": None}, {"kty": ["RSA"]}, {"kty": "RSA"}, {"kty": "RSA", "n": 5, "e": "AQAB"},
        {"kty": "RSA", "n": "", "e": "AQAB"}, {"kty": "RSA", "n": "\ud800", "e": "AQAB"},
        published("ES256"), {**published("ES256"), "x": "AAAA"},
    ]  # fmt: skip
    asked: list[str] = []

    def keys_of(kid: str) -> list[dict[str, Any]]:
        asked.append(kid)
        return [*broken, published("RS256")]

    assert tokens.verified(signed(kid="k7"), keys_of) == CLAIMS
    assert tokens.verified(signed(), keys_of) == CLAIMS
    assert asked == ["k7", ""]


def test_a_set_that_shows_its_private_half_is_read_without_it() -> None:
    shown = jwt.get_algorithm_by_name("RS256").to_jwk(private("RS256"), as_dict=True)
    assert "d" in shown
    assert tokens.verified(signed(), lambda kid: [shown]) == CLAIMS


@pytest.mark.filterwarnings("ignore::jwt.InsecureKeyLengthWarning")  # of signing here
def test_a_short_rsa_key_proves_nothing() -> None:
    assert why(signed("RS256", 1024), published("RS256", 1024)) == "none of the provider's keys has signed it"


def test_a_curve_belongs_to_its_algorithm() -> None:
    head = b64({"alg": "ES256"})
    message = f"{head}.{b64(CLAIMS)}"
    signature = jwt.get_algorithm_by_name("ES256").sign(message.encode(), private("ES384"))
    token = f"{message}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"
    assert why(token, published("ES384")) == "none of the provider's keys has signed it"


@pytest.mark.parametrize(
    ("token", "said"),
    [
        ("", "it is no signed token"),
        ("a.b", "it is no signed token"),
        ("a.b.c.d", "it is no signed token"),
        (f"{b64({'alg': 'RS256'})}.{'A' * 64 * 1024}.AAAA", "it is no signed token"),
        ("..", "it is not well encoded"),
        ("é.a.b", "it is not well encoded"),
        ("\ud800.a.b", "it is not well encoded"),
        (f"{b64([1])}.{b64(CLAIMS)}.AAAA", "it is not well encoded"),
        (f"{b64({'alg': 'RS256'})}.{b64(CLAIMS)}.!!!!", "it is not well encoded"),
        (f"{b64({})}.{b64(CLAIMS)}.", "its algorithm is not taken"),
        (f"{b64({'alg': 'none'})}.{b64(CLAIMS)}.", "its algorithm is not taken"),
        (f"{b64({'alg': 'HS256'})}.{b64(CLAIMS)}.AAAA", "its algorithm is not taken"),
        (f"{b64({'alg': 'EdDSA'})}.{b64(CLAIMS)}.AAAA", "its algorithm is not taken"),
        (f"{b64({'alg': ['RS256']})}.{b64(CLAIMS)}.AAAA", "its algorithm is not taken"),
        (f"{b64({'alg': 'RS256', 'kid': 7})}.{b64(CLAIMS)}.AAAA", "its header is not understood"),
        (f"{b64({'alg': 'RS256', 'crit': ['x'], 'x': 1})}.{b64(CLAIMS)}.AAAA", "its header is not understood"),
        (f"{b64({'alg': 'RS256', 'crit': ['b64'], 'b64': True})}.{b64(CLAIMS)}.A", "it is not well encoded"),
        (f"{b64({'alg': 'RS256', 'crit': ['b64'], 'b64': True})}.{b64(CLAIMS)}.AAAA", "its header is not understood"),
        (f"{b64({'alg': 'RS256', 'crit': ['b64'], 'b64': False})}..AAAA", "its header is not understood"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_token_is_refused_before_any_key_is_asked_for(token: str, said: str) -> None:
    def keys_of(kid: str) -> list[dict[str, Any]]:
        raise AssertionError(kid)

    with pytest.raises(tokens.BadToken) as refused:
        tokens.verified(token, keys_of)
    assert str(refused.value) == said


@pytest.mark.parametrize("payload", [b"", b"[1]", b"\xff\xfe", b"[" * 30000, b'{"a":' + b"9" * 5000 + b"}"])
def test_signed_claims_that_are_no_object_are_refused(payload: bytes) -> None:
    assert why(signed(payload=payload), published("RS256")) == "it is not well encoded"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"exp": float("nan")}, "it has no exp"),
        ({"exp": float("inf")}, "it has no exp"),
        ({"exp": 10**400}, "it has no exp"),
        ({"exp": True}, "it has no exp"),
        ({"iat": float("nan")}, "it has no iat"),
        ({"iat": "soon"}, "it has no iat"),
        ({"nonce": "\ud800"}, "it belongs to another sign-in"),
        ({"sub": "a\x00b"}, "it names nobody"),
        ({"sub": "\ud800"}, "it names nobody"),
        ({"sub": "x" * 256}, "it names nobody"),
        ({"azp": "other"}, "it was issued to another client"),
    ],
)
def test_claims_that_no_check_can_read_are_refused(changed: dict[str, Any], said: str) -> None:
    good = {"iss": "i", "aud": "c", "nonce": "n", "sub": "s", "exp": NOW.timestamp() + 60, "iat": NOW.timestamp()}
    tokens.check(good, issuer="i", audience="c", nonce="n", now=NOW)
    with pytest.raises(tokens.BadToken) as refused:
        tokens.check({**good, **changed}, issuer="i", audience="c", nonce="n", now=NOW)
    assert str(refused.value) == said


@pytest.mark.parametrize(("said", "at"), [(5, 5.0), (float("nan"), None), (10**400, None), (True, None), ("5", None)])
def test_a_time_of_proof_is_a_number_of_seconds(said: object, at: float | None) -> None:
    assert tokens.proved_at({"auth_time": said}) == at
