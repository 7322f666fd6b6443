"""Who does something, and by which way: every service takes one, every audit event keeps one."""

import dataclasses
import enum
import uuid


class ActorKind(enum.StrEnum):
    """What kind of party acts."""

    USER = "user"
    KEY = "key"
    NODE = "node"
    GATEWAY = "gateway"
    SYSTEM = "system"


class Way(enum.StrEnum):
    """Through which door a change came."""

    CONSOLE = "console"
    API = "api"
    CLI = "cli"
    AGENT = "agent"
    SYSTEM = "system"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Actor:
    """``label`` is what people read (an e-mail, a key's name). ``tenant_id`` is set for tenant keys.

    ``roles`` maps tenant ids to role names for users; a platform admin is above tenants.
    """

    kind: ActorKind
    id: str
    label: str
    way: Way
    tenant_id: uuid.UUID | None = None
    roles: tuple[tuple[uuid.UUID, str], ...] = ()
    is_platform_admin: bool = False
    address: str = ""
    request_id: str = ""

    def role_in(self, tenant_id: uuid.UUID) -> str | None:
        """Role name in ``tenant_id``, or ``None`` for a stranger."""
        return dict(self.roles).get(tenant_id)


def system(name: str) -> Actor:
    """The platform itself, acting through the loop ``name``."""
    return Actor(kind=ActorKind.SYSTEM, id=name, label=name, way=Way.SYSTEM)
