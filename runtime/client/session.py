"""One run of the command line: which server, as whom, in which tenant, and how results are written."""

import datetime
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

import typer

from runtime.client import config
from runtime.client.api import Api, http_client
from runtime.client.config import Config, Profile
from runtime.client.errors import ApiError, NotSignedIn, UsageError
from runtime.client.output import Format, Output

ENV_SERVER: Final = "MILLPOND_SERVER"
ENV_GATEWAY: Final = "MILLPOND_GATEWAY"
ENV_TENANT: Final = "MILLPOND_TENANT"
ENV_TOKEN: Final = "MILLPOND_TOKEN"  # noqa: S105  (the name of a variable)
ENV_API_KEY: Final = "MILLPOND_API_KEY"
_GATEWAY_PORT: Final = 8101


class Session:
    """Options win over variables, variables over the profile."""

    def __init__(
        self,
        env: Mapping[str, str],
        *,
        server: str = "",
        profile: str = "",
        tenant: str = "",
        form: Format = Format.TABLE,
        quiet: bool = False,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.env = env
        self.output = Output(form, quiet=quiet)
        self.sleep = sleep
        self.monotonic = monotonic
        self.profile_name = profile
        self.profile_may_be_new = False
        self._server = server
        self._tenant = tenant
        self._config: Config | None = None
        self._api: Api | None = None
        self._rest_keys: dict[str, bool] = {}

    @property
    def config_path(self) -> Path:
        return config.path_of_config(self.env)

    @property
    def config(self) -> Config:
        """The configuration file. Where there can be none, variables alone must do."""
        if self._config is None:
            if config.ENV_CONFIG not in self.env and self._credential_in_env() and not self._has_home():
                self._config = Config()
            else:
                self._config = config.load(self.config_path)
        return self._config

    @property
    def profile(self) -> Profile:
        """What is kept under the profile's name (an empty one where signing in makes it)."""
        if self.profile_may_be_new and self.profile_name not in self.config.profiles:
            return Profile()
        return config.profile_named(self.config, self.profile_name)

    def _credential_in_env(self) -> str:
        return self.env.get(ENV_TOKEN) or self.env.get(ENV_API_KEY) or ""

    def _has_home(self) -> bool:
        return bool(self.env.get("HOME") or self.env.get("XDG_CONFIG_HOME"))

    @property
    def server(self) -> str:
        """URL of the control plane."""
        return (self._server or self.env.get(ENV_SERVER) or self.profile.server or config.DEFAULT_SERVER).rstrip("/")

    @property
    def gateway(self) -> str:
        """URL of the gateway: by default the server's host, port 8101."""
        if named := self.env.get(ENV_GATEWAY) or self.profile.gateway:
            return named.rstrip("/")
        parts = urlsplit(self.server)
        host = f"[{parts.hostname}]" if parts.hostname and ":" in parts.hostname else parts.hostname
        return f"{parts.scheme}://{host}:{_GATEWAY_PORT}"

    @property
    def bearer(self) -> str:
        """The credential for REST.

        Raises:
            NotSignedIn: there is none.
        """
        found = self._credential_in_env()
        kept = self.kept
        if found and found == self.env.get(ENV_API_KEY) and kept.token and not self._opens_rest(found):
            found = kept.token  # the variable is there for `chat` and other clients of the gateway
        found = found or kept.token or kept.key
        if not found:
            raise NotSignedIn(
                f"You are not signed in to {self.server}. Run `millpond login`, or set {ENV_TOKEN} or {ENV_API_KEY}."
            )
        return found

    @property
    def inference_key(self) -> str:
        """The API key for the gateway.

        Raises:
            NotSignedIn: there is none.
        """
        found = self.env.get(ENV_API_KEY) or self.kept.key
        if not found:
            raise NotSignedIn(
                "Inference needs an API key: make one with `millpond keys create NAME`, then set "
                f"{ENV_API_KEY} or run `millpond login --key`."
            )
        return found

    @property
    def kept(self) -> Profile:
        """The profile, without its secrets when they are another server's."""
        profile = self.profile
        same = profile.server.rstrip("/") in ("", self.server)
        return profile if same else Profile(server=profile.server)

    def _opens_rest(self, key: str) -> bool:
        """False for a key that is good for inference alone. Any other refusal is told by the call itself."""
        if key not in self._rest_keys:
            try:
                with http_client(self.server, bearer=key) as http:
                    Api(http, sleep=self.sleep).get("/me")
                self._rest_keys[key] = True
            except ApiError as exc:
                self._rest_keys[key] = exc.code != "scope_missing"
        return self._rest_keys[key]

    @property
    def api(self) -> Api:
        """The signed-in client."""
        if self._api is None:
            self._api = Api(http_client(self.server, bearer=self.bearer), sleep=self.sleep)
        return self._api

    @property
    def tenant(self) -> str:
        """The tenant's slug: as told, or the only one there is.

        Raises:
            UsageError: there are several, or none.
        """
        if not self._tenant:
            self._tenant = self.env.get(ENV_TENANT) or self.profile.tenant or self._only_tenant()
        return self._tenant

    def _only_tenant(self) -> str:
        slugs = [row["slug"] for row in self.api.get("/me")["tenants"]]
        if len(slugs) == 1:
            return str(slugs[0])
        if not slugs:
            raise UsageError("You are a member of no tenant; ask a tenant's owner or a platform admin.")
        raise UsageError(f"Say which tenant with --tenant or {ENV_TENANT}: {', '.join(sorted(slugs))}.")

    def path(self, *parts: object) -> str:
        """A path under the tenant: ``/tenants/<slug>/…``, every part quoted."""
        return "/" + "/".join(quote(str(part), safe="") for part in ("tenants", self.tenant, *parts))

    def save(self, profile: Profile) -> None:
        """Keep ``profile`` under its name and make it the current one."""
        loaded = config.load(self.config_path)
        name = self.profile_name or loaded.current
        loaded.profiles[name] = profile
        loaded.current = name
        config.save(self.config_path, loaded)
        self._config = loaded
        self._api = None

    def now(self) -> datetime.datetime:
        return datetime.datetime.now(datetime.UTC)


def of(ctx: typer.Context) -> Session:
    """The session of a command."""
    found: Any = ctx.obj
    assert isinstance(found, Session)
    return found


def part(value: object) -> str:
    """One part of a path, quoted."""
    return quote(str(value), safe="")
