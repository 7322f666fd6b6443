"""First start: one platform admin, one demo tenant with keys, and join tokens for this machine's agent and gateway."""

import json
import os
import secrets
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.db import transaction

from fleet import joining
from fleet.models import MachineKind
from kernel import actors
from tenants import services
from tenants.models import KeyScope, Tenant, User

ADMIN_EMAIL = "admin@millpond.local"
TENANT = "demo"


class Command(BaseCommand):
    """Idempotent: what exists is left alone, and secrets that were handed out are not made again."""

    help = "Create the first admin, a demo tenant with keys, and one-time join tokens; print them as JSON."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="print JSON (the default; kept for scripts)")
        parser.add_argument("--write", type=Path, help="also write the JSON to this file (mode 0600) before committing")
        parser.add_argument(
            "--join-tokens", action="store_true", help="make fresh join tokens for a node and a gateway"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        actor = actors.system("bootstrap")
        with transaction.atomic():
            facts = self._people(actor)
            for kind in MachineKind:
                facts[f"{kind}_join_token"] = (
                    joining.create_join_token(actor=actor, kind=kind, name=f"first {kind}")[1]
                    if options["join_tokens"]
                    else None
                )
            text = json.dumps(facts)
            if options["write"]:
                write_private(options["write"], text)
        self.stdout.write(text)

    def _people(self, actor: actors.Actor) -> dict[str, str | None]:
        facts: dict[str, str | None] = {
            "admin_email": ADMIN_EMAIL, "admin_password": None, "tenant": TENANT, "api_key": None, "manage_key": None,
        }  # fmt: skip
        admin = User.objects.filter(is_staff=True).order_by("date_joined").first()
        if admin is None:
            facts["admin_password"] = secrets.token_urlsafe(12)
            admin = User.objects.create_superuser(ADMIN_EMAIL, facts["admin_password"], name="Admin")
        facts["admin_email"] = admin.email
        tenant = Tenant.objects.filter(slug=TENANT).first()
        if tenant is None:
            tenant = services.create_tenant(actor=actor, slug=TENANT, name="Demo", owner=admin)
            for name, scope in (("api_key", KeyScope.INFERENCE), ("manage_key", KeyScope.MANAGE)):
                _row, facts[name] = services.create_api_key(
                    actor=actor, tenant=tenant, name=f"first {scope.value} key", scopes=[scope.value]
                )
        return facts


def write_private(path: Path, text: str) -> None:
    """Write ``text`` durably, for the owner only: a crash must not lose the only copy of a password."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(path.name + ".new")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "w") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())
    draft.replace(path)
