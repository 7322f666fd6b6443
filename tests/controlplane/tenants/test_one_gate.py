"""Roles are looked at in one place: whoever needs an answer asks ``tenants.access``."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
# Reading a role to show it, or to say who a person is, is no decision.
ALLOWED = {
    "tenants/access.py",
    "tenants/api/views.py",  # tells a person that they are a platform admin
    "tenants/api/people.py",  # shows to platform admins who is one
    "tenants/identity.py",
    "tenants/models.py",
    "tenants/roles.py",
    "tenants/services.py",  # the owner that a tenant keeps
    "tenants/people.py",  # the platform admin that the platform keeps
    "tenants/second_factor.py",  # of whom a factor is wanted
    "tenants/invitations.py",  # what an offer needs, from the table of roles
    "platform/controlplane/management/commands/bootstrap.py",
}
DECIDES = re.compile(r"\bis_staff\b|\bis_superuser\b|\bpermits\(|\.role (?:==|!=|in|not in) |has_perm\(")


def test_nobody_decides_by_role_beside_the_gate() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for folder in ("platform", "tenants", "console")
        for path in (ROOT / folder).rglob("*.py")
        if str(path.relative_to(ROOT)) not in ALLOWED
        for line in path.read_text().splitlines()
        if DECIDES.search(line)
    ]
    assert not found
    assert len([name for name in ALLOWED if DECIDES.search((ROOT / name).read_text())]) >= 6
