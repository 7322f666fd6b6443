"""How machines join: a one-time token buys a credential of its own. Only digests are kept."""

import datetime
from typing import TypeVar

from django.conf import settings
from django.db import models, transaction

from fleet.errors import JoinRefused
from fleet.models import Gateway, JoinToken, MachineKind, Node
from fleet.states import NODE, NodeState
from kernel import clock, errors, ids, machine
from kernel.actors import Actor, ActorKind, Way
from kernel.conflicts import retry_on_conflict
from ledger import generations, hints
from ledger.record import record, record_move
from tenants import access

TOKEN_LIFETIME = datetime.timedelta(hours=1)
MAX_NAME = 120
MAX_MACHINE_ID = 80

M = TypeVar("M", bound=models.Model)


def digest_of(text: str) -> str:
    """Keyed hash of a machine's secret, with the installation's pepper."""
    return ids.keyed_digest(text, settings.KEY_PEPPER)


def create_join_token(*, actor: Actor, kind: MachineKind, name: str = "") -> tuple[JoinToken, str]:
    """A token that lets one machine join within the next hour; platform admins only. The text is shown once."""
    access.require_platform_admin(actor)
    secret = ids.new_secret("mpj")
    now = clock.now()
    with transaction.atomic():
        token = JoinToken.objects.create(
            kind=kind,
            name=name[:MAX_NAME],
            digest=digest_of(secret.text),
            created_at=now,
            created_by=actor.label,
            expires_at=now + TOKEN_LIFETIME,
        )
        record(
            actor=actor,
            action="join_token.created",
            subject_kind="join_token",
            subject_id=token.id,
            tenant_id=None,
            subject_label=name,
            data={"kind": kind.value},
        )
    return token, secret.text


@retry_on_conflict
def join_node(*, token: str, name: str, machine_id: str, version: str, address: str = "") -> tuple[Node, str]:
    """Let a machine in as a node; a machine that is known stays the same node and gets a new credential.

    Raises:
        JoinRefused: the token is unknown, expired or used (``code`` is then ``token_used``).
        errors.InvalidInput: name or machine id do not fit.
    """
    _check(name, machine_id)
    secret = ids.new_secret("mpn")
    now = clock.now()
    with transaction.atomic():
        used = _take_token(token, MachineKind.NODE)
        shown = used.name or name
        node, created = Node.objects.select_for_update(no_key=True).get_or_create(
            machine_id=machine_id, defaults={"name": shown, "state_changed_at": now, "created_at": now}
        )
        actor = actor_of_node(node, address)
        node.name, node.agent_version = shown, version[:40]
        node.credential_digest = digest_of(secret.text)
        node.sequence, node.agent_id = 0, ""
        node.save(update_fields=["name", "agent_version", "credential_digest", "sequence", "agent_id"])
        if node.state == NodeState.REMOVED:
            move = machine.move(
                node, NODE, NodeState.JOINING, reason="JoinedAgain", message="The machine joined with a new token."
            )
            record_move(move, actor=actor, tenant_id=None, subject_label=shown)
        _finish(used, node.id, actor, "node.joined" if created else "node.rejoined", shown)
        generations.bump(generations.of_node(node.id))
        hints.push_on_commit(hints.PLATFORM_TOPIC, {"what": "nodes"})
    return node, secret.text


def join_gateway(*, token: str, name: str, machine_id: str, version: str, address: str = "") -> tuple[Gateway, str]:
    """Let a gateway in; the same state folder (``machine_id``) stays the same gateway. Raises as :func:`join_node`."""
    _check(name, machine_id)
    secret = ids.new_secret("mpn")
    with transaction.atomic():
        used = _take_token(token, MachineKind.GATEWAY)
        shown = used.name or name
        gateway, created = Gateway.objects.update_or_create(
            machine_id=machine_id,
            defaults={
                "name": shown,
                "version": version[:40],
                "credential_digest": digest_of(secret.text),
                "removed_at": None,
                "applied_generation": 0,
            },
            create_defaults={
                "name": shown,
                "version": version[:40],
                "credential_digest": digest_of(secret.text),
                "created_at": clock.now(),
            },
        )
        actor = actor_of_gateway(gateway, address)
        _finish(used, gateway.id, actor, "gateway.joined" if created else "gateway.rejoined", shown)
        hints.push_on_commit(hints.PLATFORM_TOPIC, {"what": "gateways"})
    return gateway, secret.text


def actor_of_node(node: Node, address: str = "") -> Actor:
    """The node, acting by itself."""
    return Actor(kind=ActorKind.NODE, id=str(node.id), label=node.name, way=Way.AGENT, address=address)


def actor_of_gateway(gateway: Gateway, address: str = "") -> Actor:
    """The gateway, acting by itself."""
    return Actor(kind=ActorKind.GATEWAY, id=str(gateway.id), label=gateway.name, way=Way.AGENT, address=address)


def forget_old_tokens() -> int:
    """Delete join tokens a day after they expired; return how many."""
    return JoinToken.objects.filter(expires_at__lt=clock.now() - datetime.timedelta(days=1)).delete()[0]


def _check(name: str, machine_id: str) -> None:
    if not 0 < len(name) <= MAX_NAME or not name.isprintable():
        raise errors.InvalidInput(f"The name is 1 to {MAX_NAME} printable characters.", data={"field": "name"})
    if not 8 <= len(machine_id) <= MAX_MACHINE_ID or not machine_id.isascii() or not machine_id.isprintable():
        raise errors.InvalidInput(
            f"The machine id is 8 to {MAX_MACHINE_ID} printable ASCII characters.", data={"field": "machine_id"}
        )


def _take_token(text: str, kind: MachineKind) -> JoinToken:
    token = JoinToken.objects.select_for_update(no_key=True).filter(digest=digest_of(text), kind=kind).first()
    if token is None:
        raise JoinRefused(
            f"The join token is unknown, or it is not for a {kind.value}. Make a new one on the nodes page."
        )
    if token.used_at is not None:
        raise JoinRefused("The join token has been used. Make a new one on the nodes page.", code="token_used")
    if token.expires_at <= clock.now():
        raise JoinRefused("The join token has expired. Make a new one on the nodes page.")
    return token


def _finish(token: JoinToken, machine_id: object, actor: Actor, action: str, label: str) -> None:
    token.used_at, token.used_by = clock.now(), machine_id  # type: ignore[assignment]
    token.save(update_fields=["used_at", "used_by"])
    record(
        actor=actor,
        action=action,
        subject_kind=action.partition(".")[0],
        subject_id=machine_id,
        tenant_id=None,
        subject_label=label,
        data={"token": str(token.id)},
    )
