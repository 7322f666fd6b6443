"""Being a node: the credential on disk, and joining with a one-time token when there is none that works."""

import asyncio
import hashlib
from pathlib import Path
from typing import Final

from runtime.agent import files
from runtime.agent.errors import LinkError, Refused
from runtime.agent.identity import Credential, Identity
from runtime.agent.link import ControlPlane, Retrying
from runtime.agent.settings import AgentSettings
from runtime.base import logs
from runtime.base.clock import Clock
from runtime.base.version import VERSION
from runtime.wire.errors import ErrorCode
from runtime.wire.joining import JoinRequest

log = logs.get(__name__)
LOOK_FOR_TOKEN_SECONDS: Final = 2.0


class Membership:
    """Holds the credential; ``control`` is told about it whenever it changes."""

    def __init__(self, *, settings: AgentSettings, identity: Identity, control: ControlPlane, clock: Clock) -> None:
        self._settings = settings
        self._identity = identity
        self._control = control
        self._clock = clock
        self._path = settings.folder / "credential.json"
        self._said = ""
        self._joining = asyncio.Lock()
        self.node_id = ""

    def load(self) -> bool:
        """Use the credential kept from before; False when there is none."""
        kept = files.read_struct(self._path, Credential)
        if kept is None:
            return False
        self._use(kept)
        return True

    async def ensure(self) -> str:
        """Return the node id, joining first if need be; waits for a token and the control plane without end."""
        async with self._joining:  # the token works once: only one of the callers may spend it
            return await self._ensure()

    async def _ensure(self) -> str:
        retrying = Retrying(limit=10.0)
        while not self.node_id:
            token = self._token()
            if not token:
                self._say("waiting_for_join_token", file=str(self._settings.join_token_file))
                await self._clock.sleep(LOOK_FOR_TOKEN_SECONDS)
                continue
            try:
                await self._join(token)
            except Refused as exc:
                self._say("join_refused", code=exc.code.value, message=exc.message)
                await self._clock.sleep(retrying.pause())
            except LinkError as exc:
                self._say("control_plane_unreachable", error=str(exc))
                await self._clock.sleep(retrying.pause())
        return self.node_id

    def rejected(self, refusal: Refused) -> bool:
        """The control plane does not accept the credential. True when it was given up because a new token lies ready.

        Without a new token the credential stays: a fault of the control plane must not cost the node its identity.
        """
        self._say("credential_refused", code=refusal.code.value, message=refusal.message)
        token = self._token()
        kept = files.read_struct(self._path, Credential)
        if not token or (kept is not None and kept.token_digest == _digest(token)):
            return False
        self.node_id = ""
        self._control.credential = ""
        return True

    async def _join(self, token: str) -> None:
        reply = await self._control.join(
            JoinRequest(
                token=token,
                name=self._settings.node_name,
                machine_id=self._identity.machine_id,
                version=VERSION,
            )
        )
        credential = Credential(
            node_id=reply.id,
            secret=reply.credential,
            token_digest=_digest(token),
        )
        files.write_struct(self._path, credential)
        self._use(credential)
        log.info("joined", node=reply.id)

    def _use(self, credential: Credential) -> None:
        self.node_id = credential.node_id
        self._control.credential = credential.secret
        self._said = ""

    def _token(self) -> str:
        """The one-time token in its file, "" while there is none."""
        path: Path | None = self._settings.join_token_file
        try:
            return path.read_text().strip() if path else ""
        except FileNotFoundError:
            return ""
        except (OSError, UnicodeDecodeError) as exc:
            self._say("join_token_unreadable", error=str(exc))
            return ""

    def _say(self, event: str, **fields: str) -> None:
        """Log a condition once until it changes."""
        key = f"{event} {fields}"
        if key != self._said:
            self._said = key
            log.warning(event, **fields)


def is_removed(refusal: Refused) -> bool:
    """True when a person has removed this node: then, and only then, nothing here is wanted any more."""
    return refusal.code is ErrorCode.REMOVED


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
