"""login, logout, whoami, tenants: who calls, and where."""

import sys
from typing import Annotated

import typer

from runtime.client import proof
from runtime.client import session as sessions
from runtime.client.api import Api, http_client
from runtime.client.config import Profile
from runtime.client.errors import ApiError, NotSignedIn, UsageError
from runtime.client.output import field, moment
from runtime.client.session import Session


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(login)
    app.command()(logout)
    app.command()(whoami)
    app.command()(tenants)


def login(
    ctx: typer.Context,
    email: Annotated[str, typer.Option(help="E-mail address; asked for when absent.")] = "",
    password_stdin: Annotated[bool, typer.Option("--password-stdin", help="Read the password from stdin.")] = False,
    key: Annotated[
        bool, typer.Option("--key", help="Keep an API key (asked for, or read from stdin) instead.")
    ] = False,
    gateway: Annotated[str, typer.Option(help="URL of the gateway, when it is not port 8101 of the server.")] = "",
    code: Annotated[str, typer.Option(help="Code of the authenticator app, or a recovery code; asked for.")] = "",
) -> None:
    """Sign in, and keep the token in a private file (or an API key, with --key)."""
    session = sessions.of(ctx)
    session.profile_may_be_new = bool(session.profile_name)
    session.config_path  # noqa: B018  (says early where nothing can be kept)
    profile = _fresh_profile(session, gateway)
    if key:
        _keep_key(session, profile)
        return
    if password_stdin and not email:
        raise UsageError("With --password-stdin say --email too.")
    if not password_stdin and not sys.stdin.isatty():
        raise UsageError(
            "There is no terminal to ask for the password: give it with --email and --password-stdin, keep an API key "
            f"with --key, or set {sessions.ENV_TOKEN} instead of signing in."
        )
    email = email or typer.prompt("E-mail", err=True)
    password = proof.password(from_stdin=password_stdin)
    with http_client(session.server) as http:
        body = {"email": email, "password": password, "code": code}
        answer = proof.post(Api(http, sleep=session.sleep), "/login", body)
    profile.token, profile.label = answer["token"], answer["user"]["email"]
    session.save(profile)
    session.output.note(f"Signed in to {session.server} as {profile.label}, until {moment(answer['expires_at'])}.")


def _fresh_profile(session: Session, gateway: str) -> Profile:
    """The profile to fill. Another server's tenant, gateway and key mean nothing on this one."""
    old = session.profile
    same = old.server in ("", session.server)
    return Profile(
        server=session.server,
        gateway=gateway or (old.gateway if same else ""),
        tenant=session.env.get(sessions.ENV_TENANT, "") or (old.tenant if same else ""),
        key=old.key if same else "",
    )


def _keep_key(session: Session, profile: Profile) -> None:
    text = (
        typer.prompt("API key", hide_input=True, err=True)
        if sys.stdin.isatty()
        else sys.stdin.readline().rstrip("\r\n")
    )
    if not text.startswith("mp_"):
        raise UsageError("An API key begins with mp_; make one with `millpond keys create NAME` or in the console.")
    old = session.profile
    if old.server in ("", session.server):
        profile.token, profile.label = old.token, old.label
    profile.key = text
    try:
        with http_client(session.server, bearer=text) as http:
            me = Api(http, sleep=session.sleep).get("/me")
    except ApiError as exc:
        if exc.code != "scope_missing":  # an inference key opens no REST, which is fine: it is for the gateway
            raise
    else:
        profile.label = profile.label or me["label"]
        profile.tenant = profile.tenant or (me["tenants"][0]["slug"] if me["tenants"] else "")
    session.save(profile)
    session.output.note(f"The key is kept for {session.server} in {session.config_path}.")


def logout(ctx: typer.Context) -> None:
    """Revoke the token and forget what was kept for this profile."""
    session = sessions.of(ctx)
    profile = session.kept
    if not profile.token and not profile.key:
        raise NotSignedIn(f"Nothing is kept for {session.server} in this profile.")
    if profile.token:
        try:
            with http_client(session.server, bearer=profile.token) as http:
                Api(http, sleep=session.sleep).send("POST", "/logout")
        except ApiError as exc:
            if exc.status != 401:  # already worthless
                raise
    session.save(Profile(server=profile.server, gateway=profile.gateway, tenant=profile.tenant))
    session.output.note("Signed out.")


def whoami(ctx: typer.Context) -> None:
    """Show who the platform takes you for."""
    session = sessions.of(ctx)
    me = session.api.get("/me")
    without_role = "key" if me["kind"] == "key" else "platform admin"
    in_tenants = [f"{row['slug']} ({row['role'] or without_role})" for row in me["tenants"]]
    session.output.one(
        me,
        [
            ("server", session.server),
            ("who", f"{me['label']} ({me['kind']})"),
            ("platform admin", me["is_platform_admin"]),
            ("tenants", in_tenants),
        ],
    )


def tenants(
    ctx: typer.Context,
    use: Annotated[str, typer.Option("--use", help="Make this tenant the profile's default.")] = "",
) -> None:
    """List the tenants that you may enter."""
    session = sessions.of(ctx)
    rows = session.api.get("/me")["tenants"]
    if use:
        if use not in [row["slug"] for row in rows]:
            raise UsageError(f"You are no member of {use!r}.")
        profile = session.profile
        profile.tenant = use
        profile.server = profile.server or session.server
        session.save(profile)
        session.output.note(f"Commands work in {use} now.")
        return
    session.output.rows(
        rows,
        [("tenant", field("slug")), ("name", field("name")), ("role", field("role"))],
        empty="You are a member of no tenant; ask a tenant's owner or a platform admin.",
    )
