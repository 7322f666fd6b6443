"""OpenID Connect Core 1.0 with the authorization code flow and PKCE (RFC 7636), as a client.

Own, since allauth's provider needs two packages that the control plane does not have (requests, oauthlib), and since
everything that comes from the provider is bounded and checked here: the issuer of its document, the kind of its
addresses, signature (by PyJWT), issuer, audience, times and nonce of the ID token. Redirects are not followed.
"""

import base64
import hashlib
import json
import secrets
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode

from django.core.cache import cache

from kernel import clock, errors
from tenants.openid import tokens
from tenants.openid.providers import Provider, is_safe

TIMEOUT_SECONDS: Final = 10.0
MAX_BYTES: Final = 256 * 1024
DOCUMENT_SECONDS: Final = 3600
# A key that is not in the cached set is looked for once a minute, whatever the tokens say.
REFETCH_SECONDS: Final = 60


class ProviderFailed(errors.Unavailable):
    """The provider does not answer, or not as the standard says."""

    code = "openid_provider_failed"
    title = "The company's sign-in does not answer"


class SignInRefused(errors.Forbidden):
    """The answer of the provider cannot be taken."""

    code = "openid_refused"
    title = "The sign-in was refused"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


_OPENER: Final = urllib.request.build_opener(urllib.request.ProxyHandler(), _NoRedirect())


def discover(provider: Provider) -> dict[str, Any]:
    """The provider's document, an hour old at most.

    Raises:
        ProviderFailed: it cannot be had, or names another issuer or unsafe addresses.
    """
    key = f"openid:document:{_short(provider.issuer)}"
    if isinstance(kept := cache.get(key), dict):
        return kept
    document = _fetch(f"{provider.issuer}/.well-known/openid-configuration")
    if str(document.get("issuer", "")).rstrip("/") != provider.issuer:
        raise ProviderFailed("The provider's document names another issuer.")
    for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
        if not is_safe(str(document.get(name, ""))):
            raise ProviderFailed(f"The provider's document has no usable {name}.")
    cache.set(key, document, DOCUMENT_SECONDS)
    return document


def start(provider: Provider, *, redirect_uri: str, fresh: bool) -> tuple[str, dict[str, str]]:
    """Where to send the browser, and what to keep for its return. ``fresh`` asks for a new proof there."""
    flow = {
        "state": secrets.token_urlsafe(24),
        "nonce": secrets.token_urlsafe(24),
        "verifier": secrets.token_urlsafe(48),
    }
    challenge = base64.urlsafe_b64encode(hashlib.sha256(flow["verifier"].encode()).digest()).rstrip(b"=").decode()
    query = {
        "response_type": "code",
        "client_id": provider.client_id,
        "redirect_uri": redirect_uri,
        "scope": " ".join(provider.scopes),
        "state": flow["state"],
        "nonce": flow["nonce"],
        "code_challenge": challenge,
        "code_challenge_method": "S256",
    }
    if fresh:
        query |= {"max_age": "0", "prompt": "login"}
    endpoint = str(discover(provider)["authorization_endpoint"])
    return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(query)}", flow


def finish(provider: Provider, *, code: str, flow: Mapping[str, str], redirect_uri: str) -> dict[str, Any]:
    """The claims of the ID token that ``code`` is worth.

    Raises:
        ProviderFailed: the provider does not answer.
        SignInRefused: the token is not for us, not for this sign-in, or not the provider's.
    """
    document = discover(provider)
    form = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": redirect_uri,
        "code_verifier": flow["verifier"],
    }
    headers: dict[str, str] = {}
    methods = document.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
    if provider.client_secret and "client_secret_basic" in methods:
        pair = f"{quote(provider.client_id, safe='')}:{quote(provider.client_secret, safe='')}"
        headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    else:
        form["client_id"] = provider.client_id
        if provider.client_secret:
            form["client_secret"] = provider.client_secret
    answer = _fetch(str(document["token_endpoint"]), form=form, headers=headers)
    token = answer.get("id_token")
    if not isinstance(token, str):
        raise SignInRefused("The provider sent no ID token.")
    try:
        claims = tokens.verified(token, lambda kid: _keys(provider, document, kid))
        tokens.check(
            claims, issuer=str(document["issuer"]), audience=provider.client_id, nonce=flow["nonce"], now=clock.now()
        )
    except tokens.BadToken as exc:
        raise SignInRefused(f"The provider's ID token cannot be taken: {exc}.") from None
    return claims


def _keys(provider: Provider, document: Mapping[str, Any], kid: str) -> list[dict[str, Any]]:
    """The provider's keys that may have signed, fetched again when ``kid`` is not among those we know."""
    key = f"openid:keys:{_short(provider.issuer)}"
    kept = cache.get(key)
    known = isinstance(kept, list) and (not kid or any(one.get("kid") == kid for one in kept))
    if not known and (kept is None or cache.add(f"{key}:asked", 1, REFETCH_SECONDS)):
        found = _fetch(str(document["jwks_uri"])).get("keys")
        kept = [one for one in found if isinstance(one, dict)][:50] if isinstance(found, list) else []
        cache.set(key, kept, DOCUMENT_SECONDS)
    return [one for one in kept or [] if not kid or one.get("kid") == kid]


def _fetch(
    url: str, *, form: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None
) -> dict[str, Any]:
    body = urlencode(form).encode() if form is not None else None
    request = urllib.request.Request(url, data=body, headers={"Accept": "application/json", **(headers or {})})  # noqa: S310  (is_safe)
    try:
        with _OPENER.open(request, timeout=TIMEOUT_SECONDS) as response:
            text = response.read(MAX_BYTES + 1)
    except urllib.error.HTTPError as exc:
        if form is not None and 400 <= exc.code < 500:  # a code that was used, or is not ours
            raise SignInRefused("The provider did not take the code of this sign-in. Begin again.") from None
        raise ProviderFailed(f"The provider answered with {exc.code}.") from None
    except (OSError, ValueError):
        raise ProviderFailed("The provider cannot be reached. Try again, or sign in with a password.") from None
    try:
        parsed = json.loads(text) if len(text) <= MAX_BYTES else None
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise ProviderFailed("The provider's answer is no JSON object.")
    return parsed


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
