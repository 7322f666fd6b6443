"""models, versions, upload, alias: what can be served."""

from pathlib import Path
from typing import Annotated, Any

import typer

from runtime.client import files, naming, output, waiting
from runtime.client import session as sessions
from runtime.client.commands import evaluation
from runtime.client.errors import ApiError, ClientError, NotReached, UsageError
from runtime.client.files import LocalFile
from runtime.client.output import field
from runtime.client.progress import meter
from runtime.client.session import Session
from runtime.client.tus import Job, Uploader

VALIDATION_SECONDS = 1800.0
_FINISHED = frozenset({"ready", "rejected", "archived"})


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(upload)
    group = typer.Typer(help="List the tenant's models; judge one before it is uploaded.")
    group.callback(invoke_without_command=True)(list_models)
    group.command()(evaluation.evaluate)
    app.add_typer(group, name="models")
    app.command()(versions)
    app.command()(alias)


def list_models(ctx: typer.Context) -> None:
    """List the tenant's models; judge one before it is uploaded."""
    if ctx.invoked_subcommand is not None:
        return
    session = sessions.of(ctx)
    rows = list(session.api.rows(session.path("models")))
    session.output.rows(
        rows,
        [("model", field("name")), ("description", field("description")), ("created", field("created_at"))],
        empty="No models yet: millpond upload PATH --model NAME.",
    )


def versions(ctx: typer.Context, model: Annotated[str, typer.Argument(help="Name of the model.")]) -> None:
    """List the versions of a model, newest first."""
    session = sessions.of(ctx)
    rows = list(session.api.rows(session.path("models", model, "versions")))
    session.output.rows(
        rows,
        [
            ("version", field("number")),
            ("state", field("state")),
            ("format", field("format")),
            ("architecture", field("architecture")),
            ("size", lambda row: output.size(row.get("size_bytes"))),
            ("context", lambda row: row.get("max_model_len") or ""),
            ("aliases", field("aliases")),
            ("message", field("message")),
        ],
        empty=f"{model} has no version yet: millpond upload PATH --model {model}.",
    )


def alias(
    ctx: typer.Context,
    reference: Annotated[str, typer.Argument(metavar="MODEL:VERSION", help="The version to name.")],
    name: Annotated[str, typer.Argument(help="The alias, for instance champion.")],
) -> None:
    """Let an alias name a version (moving it if it named another)."""
    session = sessions.of(ctx)
    wanted = naming.model_ref(reference)
    if not isinstance(wanted.version, int):
        raise UsageError("Say which version by its number: MODEL:3.")
    answer = session.api.put(session.path("models", wanted.model, "aliases", name), {"version": wanted.version})
    session.output.one(answer or {}, [("alias", f"{wanted.model}@{name}"), ("version", wanted.version)])


def upload(
    ctx: typer.Context,
    path: Annotated[
        Path, typer.Argument(help="Folder of a Hugging Face or ONNX model, a .gguf or an .onnx file.", exists=False)
    ],
    model: Annotated[str, typer.Option("--model", "-m", help="Name of the model; made when it is new.")] = "",
    description: Annotated[str, typer.Option(help="What is new in this version.")] = "",
    isolation: Annotated[
        str, typer.Option(help="The least that its replicas must have: any, mps, hardware or exclusive.")
    ] = "",
    wait: Annotated[bool, typer.Option(help="Wait until the version is ready or rejected.")] = True,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the check.")] = VALIDATION_SECONDS,
) -> None:
    """Upload a new version of a model. Run again after an interruption, it goes on where it stopped."""
    session = sessions.of(ctx)
    chosen = files.select(path)
    name = model or (path.stem if path.is_file() else path.resolve().name)
    if chosen.left_out:
        shown = ", ".join(chosen.left_out[:5]) + (" …" if len(chosen.left_out) > 5 else "")
        session.output.note(f"Left out, as no part of a model here: {shown}")
    digests = _digests(session, chosen)
    _ensure_model(session, name)
    version = _version_for(session, name, chosen.files, digests, description, isolation)
    _send(session, version, chosen.files, digests)
    where = session.path("models", name, "versions", version["number"])
    _await_verified(session, where, timeout)
    session.api.post(f"{where}/finalize")
    if wait:
        session.output.note(f"Uploaded {name}:{version['number']}; checking it")
        _await_check(session, where, timeout)
    final = session.api.get(where)
    session.output.one(
        final,
        [
            ("version", f"{name}:{final['number']}"),
            ("state", final["state"]),
            ("format", final.get("format")),
            ("architecture", final.get("architecture")),
            ("size", output.size(final.get("size_bytes"))),
            ("context", final.get("max_model_len") or ""),
            ("needs", output.size((final.get("estimate") or {}).get("total_bytes"))),
            *_ports(final.get("metadata") or {}),
        ],
    )


def _ports(metadata: dict[str, Any]) -> list[tuple[str, Any]]:
    """Inputs and outputs of a model that is a graph: ``x FP32 [batch, 4]``."""
    return [
        (what, ", ".join(f"{each['name']} {each['datatype']} {_shape(each['shape'])}" for each in metadata[f"{what}s"]))
        for what in ("input", "output")
        if metadata.get(f"{what}s")
    ]


def _shape(dims: list[Any] | None) -> str:
    return "of any shape" if dims is None else f"[{', '.join(str(each) for each in dims)}]"


def _digests(session: Session, chosen: files.Selection) -> dict[str, str]:
    found: dict[str, str] = {}
    done = 0
    with meter(session.output, "hashing", chosen.size) as bar:
        for file in chosen.files:

            def count(more: int) -> None:
                nonlocal done
                done += more
                bar.at(done)

            found[file.path] = files.digest(file.source, count)
    return found


def _ensure_model(session: Session, name: str) -> None:
    try:
        session.api.get(session.path("models", name))
    except ApiError as exc:
        if exc.status != 404:
            raise
        session.api.post(session.path("models"), {"name": name})


def _version_for(
    session: Session,
    name: str,
    chosen: list[LocalFile],
    digests: dict[str, str],
    description: str,
    isolation: str,
) -> dict[str, Any]:
    """An unfinished upload of exactly these files, or a new version."""
    where = session.path("models", name, "versions")
    wanted = {(file.path, file.size, digests[file.path]) for file in chosen}
    for row in session.api.rows(where, most=20):
        if row["state"] != "uploading":
            continue
        begun: dict[str, Any] = session.api.get(f"{where}/{row['number']}")
        if {(file["path"], file["size"], file["sha256"]) for file in begun["files"]} == wanted:
            session.output.note(f"Going on with {name}:{row['number']}")
            return begun
    body: dict[str, Any] = {
        "files": [{"path": file.path, "size": file.size, "sha256": digests[file.path]} for file in chosen]
    }
    if description:
        body["description"] = description
    if isolation:
        body["isolation"] = isolation
    made: dict[str, Any] = session.api.post(where, body)
    return made


def _send(session: Session, version: dict[str, Any], chosen: list[LocalFile], digests: dict[str, str]) -> None:
    known = {file["path"]: file for file in version["files"]}
    waiting_files = [file for file in chosen if known[file.path]["state"] != "verified"]
    total = sum(file.size for file in waiting_files)
    uploader = Uploader(session.api.http, "/api/v1" + session.path("uploads"), sleep=session.sleep)
    before = 0
    with meter(session.output, "uploading", total) as bar:
        for file in waiting_files:
            job = Job(
                source=file.source,
                size=file.size,
                metadata={"version": str(version["id"]), "path": file.path, "sha256": digests[file.path]},
                url=known[file.path].get("upload_url") or "",
            )
            uploader.upload(job, lambda offset, start=before: bar.at(start + offset))  # type: ignore[misc]
            before += file.size


def _await_verified(session: Session, where: str, timeout: float) -> None:
    """Large files are read again by the platform before they count."""

    def done(version: waiting.State) -> bool:
        states = {file["path"]: file["state"] for file in version["files"]}
        if lost := [path for path, state in states.items() if state == "waiting"]:
            raise ClientError(f"{lost[0]} did not arrive as it was declared; run the same command again.")
        return set(states.values()) == {"verified"}

    if done(session.api.get(where)):
        return
    waiting.until(
        session,
        lambda: session.api.get(where),
        done=done,
        line=lambda version: "verifying {} file(s)".format(
            sum(file["state"] != "verified" for file in version["files"])
        ),
        timeout_seconds=timeout,
    )


def _await_check(session: Session, where: str, timeout: float) -> None:
    def done(version: waiting.State) -> bool:
        if version["state"] == "rejected":
            raise NotReached(f"The version was rejected ({version['reason']}): {version['message']}")
        return version["state"] in _FINISHED

    waiting.until(
        session,
        lambda: session.api.get(where),
        done=done,
        line=lambda version: f"version {version['number']}: {version['state']}",
        timeout_seconds=timeout,
    )
