"""How the gateway belongs to a control plane: join once with a one-time token, keep the credential, join anew.

A control plane that no longer knows the credential is believed only when a token that was not used yet lies in the
token file: until then serving goes on as far as the table allows.
"""

import asyncio
import hashlib
import secrets
from pathlib import Path
from typing import Final

import msgspec

from runtime.base import logs
from runtime.base.version import VERSION
from runtime.gateway.control import ControlError, ControlPlane
from runtime.gateway.files import write_private
from runtime.gateway.loops import Backoff
from runtime.gateway.settings import Settings
from runtime.gateway.table import TableKeeper
from runtime.wire import codec, errors
from runtime.wire.joining import JoinRequest

log = logs.get(__name__)

_MAX_PAUSE: Final = 10.0


class Credential(msgspec.Struct, frozen=True, kw_only=True):
    """What joining gave. ``token_digest`` (SHA-256) tells whether the token in the file is the one that was used."""

    id: str
    credential: str
    token_digest: str = ""


class Membership:
    """The gateway's identity. ``joined`` is set once there is a credential, and stays set."""

    def __init__(self, settings: Settings, control: ControlPlane, keeper: TableKeeper) -> None:
        self._settings = settings
        self._control = control
        self._keeper = keeper
        self._credential: Credential | None = None
        self._rejected = asyncio.Event()
        self.joined = asyncio.Event()

    @property
    def id(self) -> str:
        """The gateway's id at the control plane, "" before it has joined."""
        return self._credential.id if self._credential else ""

    def accepted(self) -> None:
        """The control plane took the credential."""
        self._rejected.clear()

    def rejected(self) -> None:
        """The control plane does not know the credential, or no more."""
        self._rejected.set()

    async def keep(self) -> None:
        """Run until cancelled: have a credential, and get another when it is rejected and a new token is there."""
        if self._credential is None:
            self._adopt(self._stored())
        backoff = Backoff(_MAX_PAUSE)
        while True:
            if self._credential is not None:
                await self._rejected.wait()
            try:
                joined = await self._join()
            except (ControlError, OSError) as exc:  # OSError: a token that its user may not read, a full disk
                log.warning("not joined", error=str(exc))
                joined = False
            if joined:
                self._rejected.clear()
                backoff.reset()
            else:
                await asyncio.sleep(backoff.pause())

    def _adopt(self, credential: Credential | None) -> None:
        if credential is not None:
            self._credential = credential
            self._control.credential = credential.credential
            self.joined.set()

    async def _join(self) -> bool:
        token = self._unused_token()
        if not token:
            where = self._settings.join_token_file or "MILLPOND_GATEWAY_JOIN_TOKEN_FILE (not set)"
            log.error("cannot join: no unused join token", expected_in=str(where), has_credential=bool(self.id))
            return False
        reply = await self._control.join(
            JoinRequest(token=token, name=self._settings.name, machine_id=self._machine_id(), version=VERSION)
        )
        self._keeper.forget()  # a table of another control plane must not outrank this one's
        credential = Credential(id=reply.id, credential=reply.credential, token_digest=_digest(token))
        write_private(self._path, codec.encode(credential))
        self._adopt(credential)
        log.info("joined", gateway=reply.id)
        return True

    def _unused_token(self) -> str:
        path = self._settings.join_token_file
        token = _read_text(path) if path else ""
        used = self._credential is not None and self._credential.token_digest == _digest(token)
        return "" if used else token

    def _stored(self) -> Credential | None:
        try:
            return codec.decode(self._path.read_bytes(), Credential)
        except FileNotFoundError:
            return None
        except errors.MalformedMessage as exc:
            log.warning("credential unreadable; a new join token is needed", error=str(exc))
            return None

    @property
    def _path(self) -> Path:
        return self._settings.directory / "credential.json"

    def _machine_id(self) -> str:
        """An id of this state folder, made once: several gateways may run on one machine."""
        path = self._settings.directory / "machine_id"
        known = _read_text(path)
        if not known:
            known = secrets.token_hex(16)
            write_private(path, known.encode())
        return known


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _read_text(path: Path) -> str:
    try:
        return path.read_text("utf-8").strip()
    except FileNotFoundError:
        return ""
