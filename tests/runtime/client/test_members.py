"""Members, invitations and service accounts on the command line."""

from tests.build import controlplane as build

GUEST = "guest@example.org"


def test_inviting_and_accepting(signed_in, shell):
    slug = signed_in.tenant.slug
    made = shell("invitations", "create", GUEST, "--role", "viewer", "-t", slug, "-o", "json").json
    assert "mpi_" in made["link"]
    listed = shell("invitations", "list", "-t", slug)
    assert GUEST in listed.out
    assert made["link"] not in listed.out
    build.make_user(GUEST)
    shell("login", "--email", GUEST, "--password-stdin", stdin=build.PASSWORD)
    assert "viewer" in shell("invitations", "accept", stdin=made["link"] + "\n").out
    shell("invitations", "accept", stdin=made["link"] + "\n", want=1)
    shell("invitations", "accept", stdin="https://elsewhere.example/\n", want=2)
    assert "no member" in shell("members", "remove", GUEST, "-t", slug).err  # leaving


def test_an_invitation_is_named_by_its_address(signed_in, shell):
    shell("invitations", "create", GUEST)
    assert "less than a minute" in shell("invitations", "resend", GUEST, want=1).err
    shell("invitations", "revoke", GUEST)
    shell("invitations", "revoke", GUEST, want=4)


def test_members_get_roles_and_go(signed_in, shell):
    assert "invite the address" in shell("members", "set", build.make_user().email, want=4).err
    user = build.make_member(signed_in.tenant, build.Role.VIEWER)
    shell("members", "set", user.email, "--role", "admin")
    rows = {row["email"]: row["role"] for row in shell("members", "list", "-o", "json").json}
    assert rows[user.email] == "admin"
    shell("members", "remove", user.email)
    assert user.email not in shell("members", "list").out


def test_a_service_account_from_birth_to_end(signed_in, shell):
    shell("service-accounts", "create", "CI")
    key = shell("service-accounts", "create-key", "CI", "runner").out.strip()
    assert key.startswith("mp_")
    assert key not in shell("service-accounts", "keys", "CI").out
    (row,) = shell("service-accounts", "list", "-o", "json").json
    assert (row["name"], row["role"], row["live_keys"]) == ("CI", "developer", 1)
    assert "viewer" in shell("service-accounts", "set", "CI", "--role", "viewer").out
    assert "1 keys are revoked" in shell("service-accounts", "disable", "CI").err
    assert build.bearer(key).get("/api/v1/me").status_code == 401
    shell("service-accounts", "enable", "CI")
    shell("service-accounts", "delete", "CI")
    assert "No service accounts" in shell("service-accounts", "list").err
