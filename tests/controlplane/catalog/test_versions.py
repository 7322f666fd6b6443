"""What happens to versions behind the API: check, immutability, revisions, deletion, expiry, collection."""

import datetime
import hashlib
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction

from catalog import access, expiry, formats, releases, selectors, services, storage, uploads, validation
from catalog.errors import InUse, VersionNotReady
from catalog.models import Artifact, Model, ModelVersion, Revision, Runtime, ServingConfig, Upload, VersionFile
from catalog.states import VERSION, UploadState, VersionState
from kernel import clock, errors, machine, scope
from kernel.actors import Actor
from ledger.models import AuditEvent
from serving.services.deployments import deploy
from tenants.models import Tenant
from tests.build import catalog as build_catalog
from tests.build import controlplane as build

pytestmark = pytest.mark.django_db
HOUR = datetime.timedelta(hours=1)


@pytest.fixture
def tenant() -> Tenant:
    return build.make_tenant()


@pytest.fixture
def actor(tenant: Tenant) -> Actor:
    return build.actor_for(build.owner_of(tenant))


@pytest.fixture(autouse=True)
def _everywhere() -> Any:
    with scope.all_tenants():
        yield


def test_a_ready_version_is_described_and_estimated(tenant: Tenant) -> None:
    version = build_catalog.checked_version(tenant, {"tiny.gguf": build_catalog.gguf()})
    assert (version.state, version.format, version.architecture) == ("ready", "gguf", "LlamaForCausalLM")
    assert (version.parameters, version.max_model_len, version.has_chat_template) == (9440, 128, True)
    assert version.metadata["weight_types"] == {"Q8_0": 136, "F32": 384, "Q4_1": 5760}
    assert version.estimate["weights_bytes"] == 9440 * 4
    events = AuditEvent.objects.filter(subject_id=str(version.id)).order_by("id").values_list("action", flat=True)
    assert list(events) == ["model_version.created", "model_version.validating", "model_version.ready"]


def test_a_check_that_stumbles_is_a_verdict_but_a_broken_disk_is_not(tenant: Tenant, monkeypatch: Any) -> None:
    def stumble(_files: object) -> formats.Facts:
        raise ZeroDivisionError

    def broken(_files: object) -> formats.Facts:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(formats, "inspect", broken)
    with pytest.raises(OSError, match="Input/output"):
        build_catalog.checked_version(tenant)
    version = ModelVersion.objects.get()
    assert version.state == VersionState.VALIDATING
    monkeypatch.setattr(formats, "inspect", stumble)
    assert validation.validate_waiting() == 1
    version.refresh_from_db()
    assert (version.state, version.reason) == ("rejected", "CheckFailed")


def test_a_verdict_is_given_once(tenant: Tenant) -> None:
    version = build_catalog.checked_version(tenant)
    assert validation.validate(version.id) is False
    assert validation.validate(uuid.uuid4()) is False


@pytest.mark.parametrize("field", ["parameters", "size_bytes", "max_model_len", "number"])
def test_the_database_refuses_to_change_a_ready_version(tenant: Tenant, field: str) -> None:
    version = build_catalog.checked_version(tenant)
    with pytest.raises(IntegrityError), transaction.atomic():
        ModelVersion.objects.filter(id=version.id).update(**{field: 7})


def test_the_database_refuses_to_change_the_files_of_a_ready_version(tenant: Tenant) -> None:
    version = build_catalog.checked_version(tenant)
    files = VersionFile.objects.filter(version=version)
    for change in (
        lambda: files.update(artifact=None),
        lambda: files.update(path="other"),
        lambda: files.delete(),
        lambda: VersionFile.objects.create(version=version, path="b.json", size=1, sha256="0" * 64),
    ):
        with pytest.raises(IntegrityError), transaction.atomic():
            change()


def test_the_database_knows_the_edges_of_a_version(tenant: Tenant) -> None:
    version = build_catalog.checked_version(tenant)
    for state in VersionState:
        if state not in (VersionState.READY, VersionState.ARCHIVED):
            with pytest.raises(IntegrityError), transaction.atomic():
                ModelVersion.objects.filter(id=version.id).update(state=state, reason="X", message="x")
    with pytest.raises(errors.StaleTransition), transaction.atomic():
        machine.move(version, VERSION, VersionState.REJECTED)


def test_a_revision_is_made_once_and_numbered_per_model(tenant: Tenant, actor: Actor) -> None:
    version = build_catalog.checked_version(tenant)
    first = services.make_revision(actor=actor, tenant=tenant, version=version, config={"max_num_seqs": 4})
    same = services.make_revision(
        actor=actor, tenant=tenant, version=version, config={"max_num_seqs": 4, "dtype": None}
    )
    other = services.make_revision(actor=actor, tenant=tenant, version=version, config={"kv_cache_gib": 0.5})
    assert (first.id, first.number, other.number) == (same.id, 1, 2)
    assert other.serving_config.kv_cache_bytes == 2**29
    lock = Path(services.settings.BASE_DIR) / "requirements-engine.lock"
    assert first.runtime.digest == hashlib.sha256(lock.read_bytes()).hexdigest()
    found = selectors.revision_by_id(tenant, first.id)
    assert found is not None
    assert (found.model.id, found.version.id) == (version.model_id, version.id)
    for row, field in ((Revision, "number"), (ServingConfig, "max_num_seqs"), (Runtime, "name")):
        with pytest.raises(IntegrityError), transaction.atomic():
            row.objects.update(**{field: 9})


def test_a_revision_needs_a_ready_version_and_a_possible_config(tenant: Tenant, actor: Actor) -> None:
    version = build_catalog.checked_version(tenant)
    with pytest.raises(errors.InvalidInput) as too_long:
        services.make_revision(actor=actor, tenant=tenant, version=version, config={"max_model_len": 129})
    assert too_long.value.data == {"field": "max_model_len"}
    services.archive_version(actor=actor, tenant=tenant, version=version)
    with pytest.raises(VersionNotReady):
        services.make_revision(actor=actor, tenant=tenant, version=version, config={})


def test_versions_are_found_by_number_and_alias(tenant: Tenant, actor: Actor) -> None:
    version = build_catalog.checked_version(tenant)
    services.set_alias(actor=actor, tenant=tenant, model=version.model, name="champion", version=version)
    for name in (1, "1", "champion"):
        assert access.access_version(actor, tenant, version.model, name).id == version.id
    for name in ("2", "9" * 30, "challenger", "²"):
        with pytest.raises(errors.NotFound):
            access.access_version(actor, tenant, version.model, name)


def test_equal_bytes_are_stored_once_and_stay_while_anybody_has_them(
    tenant: Tenant, django_capture_on_commit_callbacks: Any
) -> None:
    data = build_catalog.huggingface()
    mine = build_catalog.checked_version(tenant, data)
    other = build.make_tenant()
    theirs = build_catalog.checked_version(other, data)
    assert theirs.state == VersionState.READY
    assert Artifact.objects.count() == len(data)
    assert storage.used_bytes(tenant) == storage.used_bytes(other) == sum(map(len, data.values()))
    start = clock.now()
    with django_capture_on_commit_callbacks(execute=True):
        services.delete_model(
            actor=build.actor_for(build.owner_of(tenant)), tenant=tenant, model=Model.objects.get(id=mine.model_id)
        )
    with clock.frozen(start + 3 * HOUR):
        assert releases.collect() == 0
        services.delete_model(
            actor=build.actor_for(build.owner_of(other)), tenant=other, model=Model.objects.get(id=theirs.model_id)
        )
        assert releases.collect() == 0, "the grace time is not over"
    paths = [storage.path_of(hashlib.sha256(content).hexdigest()) for content in data.values()]
    assert all(path.is_file() for path in paths)
    with clock.frozen(start + 5 * HOUR):
        assert releases.collect() == len(data)
    assert not any(path.exists() for path in paths)
    assert not Artifact.objects.exists()


def test_what_is_deployed_is_not_deleted(tenant: Tenant, actor: Actor) -> None:
    version = build_catalog.checked_version(tenant)
    revision = services.make_revision(actor=actor, tenant=tenant, version=version, config={})
    deploy(actor=actor, tenant=tenant, endpoint_name="chat", revision=revision, replicas=1)
    with pytest.raises(InUse) as refusal:
        services.delete_model(actor=actor, tenant=tenant, model=version.model)
    assert refusal.value.data == {"by": ["deployment"]}
    version.refresh_from_db()
    assert version.state == VersionState.READY
    services.archive_version(actor=actor, tenant=tenant, version=version)
    with pytest.raises(InUse):
        services.delete_version(actor=actor, tenant=tenant, version=version)


@pytest.mark.django_db(transaction=True)
def test_two_versions_at_the_same_moment_get_two_numbers_and_one_room_in_the_quota(
    tenant: Tenant, actor: Actor, monkeypatch: Any
) -> None:
    def limit(who: Tenant, more: int) -> None:
        if storage.used_bytes(who) + more > 15:
            raise errors.QuotaExceeded("The tenant may hold 15 bytes.")

    monkeypatch.setattr(storage, "_quota_checks", [limit])
    models = [build_catalog.make_model(tenant), build_catalog.make_model(tenant)]
    files = build_catalog.declared({"a.json": b"0123456789"})
    start = threading.Barrier(2)

    def take(model: Model) -> str:
        try:
            start.wait(timeout=10)
            services.create_version(actor=actor, tenant=tenant, model=model, files=files)
        except errors.QuotaExceeded:
            return "refused"
        finally:
            connection.close()
        return "taken"

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(take, models)) == ["refused", "taken"]
    monkeypatch.setattr(storage, "_quota_checks", [])
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(take, [models[0], models[0]])) == ["taken", "taken"]
    numbers = ModelVersion.objects.filter(model=models[0]).order_by("number").values_list("number", flat=True)
    assert list(numbers) == list(range(1, len(numbers) + 1))


def test_a_version_that_nobody_fills_is_rejected_in_the_end(tenant: Tenant, actor: Actor) -> None:
    data = build_catalog.huggingface()
    version = services.create_version(
        actor=actor, tenant=tenant, model=build_catalog.make_model(tenant), files=build_catalog.declared(data)
    )
    build_catalog.fill_version(actor, tenant, version, {"config.json": data["config.json"]})
    upload = uploads.open_upload(
        actor=actor, tenant=tenant, version_id=version.id, path="tokenizer.json", length=len(data["tokenizer.json"])
    )
    start = clock.now()
    with clock.frozen(start + 47 * HOUR):
        assert (expiry.expire_uploads(), expiry.expire_versions()) == (0, 0)
    with clock.frozen(start + 49 * HOUR):
        assert expiry.expire_uploads() == 1
        assert expiry.expire_versions() == 0, "its upload has ended only now"
    upload.refresh_from_db()
    assert upload.state == UploadState.EXPIRED
    with clock.frozen(start + 98 * HOUR):
        assert expiry.expire_versions() == 1
    version.refresh_from_db()
    assert (version.state, version.reason) == ("rejected", "UploadExpired")
    assert storage.used_bytes(tenant) == 0
    with clock.frozen(start + 100 * HOUR):
        assert releases.collect() == 1


def test_files_that_no_row_knows_are_swept_after_a_day(tenant: Tenant, actor: Actor, artifact_root: Path) -> None:
    version = build_catalog.checked_version(tenant)
    waiting = services.create_version(
        actor=actor, tenant=tenant, model=version.model, files=build_catalog.declared({"a.json": b"{}"})
    )
    upload = uploads.open_upload(actor=actor, tenant=tenant, version_id=waiting.id, path="a.json", length=2)
    storage.upload_path(upload.id).write_bytes(b"{")
    stray = [artifact_root / "uploads" / str(uuid.uuid4()), artifact_root / "sha256" / "00" / ("00" * 32)]
    stray[1].parent.mkdir(exist_ok=True)
    for path in stray:
        path.write_bytes(b"x")
    assert expiry.sweep_stray_files() == 0
    with clock.frozen(clock.now() + 25 * HOUR):
        assert expiry.sweep_stray_files() == 2
    assert not any(path.exists() for path in stray)
    assert storage.upload_path(upload.id).exists()
    assert Upload.objects.filter(state=UploadState.OPEN).count() == 1
    assert all(storage.path_of(file.sha256).exists() for file in selectors.files_of(version))


def test_too_many_unfinished_versions_are_refused(tenant: Tenant, actor: Actor, monkeypatch: Any) -> None:
    monkeypatch.setattr(services, "MAX_UNFINISHED_VERSIONS_PER_TENANT", 1)
    model = build_catalog.make_model(tenant)
    files = build_catalog.declared({"a.json": b"{}"})
    services.create_version(actor=actor, tenant=tenant, model=model, files=files)
    with pytest.raises(errors.Conflict) as refusal:
        services.create_version(actor=actor, tenant=tenant, model=model, files=files)
    assert refusal.value.code == "too_many_unfinished_versions"


def test_a_model_with_text_that_cannot_be_stored_gets_its_verdict(tenant: Tenant) -> None:
    odd = "Ev\x00il\ud800"
    refused = build_catalog.checked_version(
        tenant, build_catalog.huggingface({**build_catalog.CONFIG, "architectures": [odd]})
    )
    assert (refused.state, refused.reason) == ("rejected", "UnsupportedArchitecture")
    assert "Ev�il�" in refused.message
    named = build_catalog.huggingface({**build_catalog.CONFIG, "transformers_version": odd, "_name_or_path": odd})
    assert build_catalog.checked_version(tenant, named).state == "ready"


def test_one_version_that_cannot_be_checked_does_not_hold_up_the_next(tenant: Tenant, monkeypatch: Any) -> None:
    monkeypatch.setattr(formats, "inspect", _no_disk)
    for _ in range(2):
        with pytest.raises(OSError, match="gone"):
            build_catalog.checked_version(tenant)
    monkeypatch.undo()
    first, second = ModelVersion.objects.order_by("state_changed_at")
    settle = validation._settle

    def failing(version_id: uuid.UUID, verdict: Any) -> bool:
        if version_id == first.id:
            raise IntegrityError
        return settle(version_id, verdict)

    monkeypatch.setattr(validation, "_settle", failing)
    assert validation.validate_waiting() == 1
    second.refresh_from_db()
    assert second.state == VersionState.READY


def _no_disk(_files: object) -> formats.Facts:
    raise OSError(5, "gone")
