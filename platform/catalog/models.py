"""Tables of the catalog. Ready versions, serving configs, runtimes and revisions never change; triggers refuse it."""

from typing import ClassVar

from django.contrib.postgres.fields import ArrayField
from django.core.validators import RegexValidator
from django.db import models
from django.db.models.functions import Lower
from django.utils.translation import gettext_lazy as _

from catalog.states import UploadState, VersionState
from kernel import ids
from kernel.isolation import Requirement
from kernel.scope import ScopedManager
from tenants.models import Tenant, User

MODEL_NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z"
ALIAS_NAME_PATTERN = r"^[a-z][a-z0-9._-]{0,39}\Z"
SHA256_PATTERN = r"^[0-9a-f]{64}$"
MODEL_NAME = RegexValidator(
    MODEL_NAME_PATTERN,
    _("Use 1 to 63 letters, digits, dots, hyphens and underscores; begin with a letter or digit."),
)
ALIAS_NAME = RegexValidator(
    ALIAS_NAME_PATTERN,
    _("Use 1 to 40 lower-case letters, digits, dots, hyphens and underscores; begin with a letter."),
)


class Model(models.Model):
    """A named line of versions. Numbers rise and are never given twice, also after a deletion."""

    TENANT_FIELD: ClassVar[str] = "tenant_id"

    id = models.UUIDField(primary_key=True, default=ids.new_id, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="models")
    name = models.CharField(max_length=63, validators=[MODEL_NAME])
    description = models.TextField(max_length=2000, blank=True)
    last_version_number = models.PositiveIntegerField(default=0)
    last_revision_number = models.PositiveIntegerField(default=0)
    created_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField()

    objects = ScopedManager["Model"]()

    class Meta:
        ordering = ["-id"]
        constraints = [models.UniqueConstraint("tenant", Lower("name"), name="model_name_once_per_tenant")]

    def __str__(self) -> str:
        return self.name


class ModelVersion(models.Model):
    """Immutable files under a number. Everything below ``message`` is what the check found out.

    ``isolation`` is the least that every replica of it must have, whatever a serving config says.
    ``metadata`` has the keys of ``catalog.formats.facts.Facts``; ``estimate`` those of ``catalog.estimate.Estimate``
    for the default serving config.
    """

    TENANT_FIELD: ClassVar[str] = "tenant_id"

    id = models.UUIDField(primary_key=True, default=ids.new_id, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="+")
    model = models.ForeignKey(Model, on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    description = models.TextField(max_length=2000, blank=True)
    isolation = models.CharField(max_length=16, choices=Requirement, default=Requirement.ANY)
    state = models.CharField(max_length=16, default=VersionState.UPLOADING.value)
    reason = models.CharField(max_length=64, blank=True)
    message = models.TextField(blank=True)
    state_changed_at = models.DateTimeField()
    format = models.CharField(max_length=16, blank=True)
    architecture = models.CharField(max_length=64, blank=True)
    parameters = models.BigIntegerField(default=0)
    size_bytes = models.BigIntegerField(default=0)
    max_model_len = models.PositiveIntegerField(default=0)
    has_chat_template = models.BooleanField(default=False)
    metadata = models.JSONField(default=dict)
    estimate = models.JSONField(default=dict)
    created_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField()

    objects = ScopedManager["ModelVersion"]()

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(fields=["model", "number"], name="version_number_once_per_model"),
            models.CheckConstraint(
                condition=models.Q(state__in=[state.value for state in VersionState]), name="version_state_known"
            ),
            models.CheckConstraint(condition=models.Q(number__gte=1), name="version_number_from_one"),
            models.CheckConstraint(
                condition=models.Q(isolation__in=Requirement.values), name="version_isolation_known"
            ),
            models.CheckConstraint(
                condition=models.Q(size_bytes__gte=0) & models.Q(parameters__gte=0), name="version_sizes_not_negative"
            ),
            models.CheckConstraint(
                condition=~models.Q(state__in=[VersionState.READY.value, VersionState.ARCHIVED.value])
                | (
                    ~models.Q(format="")
                    & ~models.Q(architecture="")
                    & (models.Q(max_model_len__gte=1) | models.Q(format="onnx"))
                ),
                name="version_ready_is_described",
            ),
            models.CheckConstraint(
                condition=~models.Q(state=VersionState.REJECTED.value) | (~models.Q(reason="") & ~models.Q(message="")),
                name="version_rejected_says_why",
            ),
        ]
        indexes = [
            models.Index(
                fields=["state_changed_at"],
                condition=models.Q(state__in=[VersionState.UPLOADING.value, VersionState.VALIDATING.value]),
                name="version_unfinished",
            ),
            models.Index(fields=["tenant", "state"], name="version_tenant_state"),
        ]

    def __str__(self) -> str:
        return f"version {self.number}"


class Artifact(models.Model):
    """Bytes in the content-addressed store, shared by every file with this digest, whoever owns it.

    ``released_at`` is when the last reference was seen to go (or the bytes came); a reference-less artifact is
    collected a while after that.
    """

    sha256 = models.CharField(primary_key=True, max_length=64)
    size = models.BigIntegerField()
    created_at = models.DateTimeField()
    released_at = models.DateTimeField(db_index=True)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=models.Q(sha256__regex=SHA256_PATTERN), name="artifact_digest_is_sha256"),
            models.CheckConstraint(condition=models.Q(size__gte=0), name="artifact_size_not_negative"),
        ]

    def __str__(self) -> str:
        return self.sha256


class VersionFile(models.Model):
    """A file of a version: declared at first, with an artifact once its bytes are here and verified."""

    TENANT_FIELD: ClassVar[str] = "version__tenant_id"

    id = models.UUIDField(primary_key=True, default=ids.new_id, editable=False)
    version = models.ForeignKey(ModelVersion, on_delete=models.CASCADE, related_name="files")
    path = models.CharField(max_length=255)
    size = models.BigIntegerField()
    sha256 = models.CharField(max_length=64)
    artifact = models.ForeignKey(Artifact, null=True, on_delete=models.PROTECT, related_name="files")

    objects = ScopedManager["VersionFile"]()

    class Meta:
        ordering = ["path"]
        constraints = [
            models.UniqueConstraint("version", Lower("path"), name="version_file_path_once"),
            models.CheckConstraint(condition=models.Q(size__gte=0), name="version_file_size_not_negative"),
            models.CheckConstraint(condition=models.Q(sha256__regex=SHA256_PATTERN), name="version_file_digest"),
            models.CheckConstraint(
                condition=models.Q(artifact=None) | models.Q(artifact=models.F("sha256")),
                name="version_file_has_its_artifact",
            ),
        ]

    def __str__(self) -> str:
        return self.path


class Upload(models.Model):
    """A tus upload of one file. ``offset`` counts the bytes that are safely on disk."""

    TENANT_FIELD: ClassVar[str] = "tenant_id"

    id = models.UUIDField(primary_key=True, default=ids.new_id, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="+")
    file = models.ForeignKey(VersionFile, on_delete=models.CASCADE, related_name="uploads")
    state = models.CharField(max_length=16, default=UploadState.OPEN.value)
    reason = models.CharField(max_length=64, blank=True)
    message = models.TextField(blank=True)
    state_changed_at = models.DateTimeField()
    length = models.BigIntegerField()
    offset = models.BigIntegerField(default=0)
    metadata = models.CharField(max_length=4096, blank=True)
    created_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()

    objects = ScopedManager["Upload"]()

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["file"], condition=models.Q(state=UploadState.OPEN.value), name="upload_one_open_per_file"
            ),
            models.CheckConstraint(
                condition=models.Q(state__in=[state.value for state in UploadState]), name="upload_state_known"
            ),
            models.CheckConstraint(
                condition=models.Q(offset__gte=0) & models.Q(offset__lte=models.F("length")),
                name="upload_offset_within_length",
            ),
        ]
        indexes = [
            models.Index(fields=["expires_at"], condition=models.Q(state=UploadState.OPEN.value), name="upload_open")
        ]

    def __str__(self) -> str:
        return f"upload {self.id}"


class Alias(models.Model):
    """A movable name for a version of a model (``champion``)."""

    TENANT_FIELD: ClassVar[str] = "tenant_id"

    id = models.UUIDField(primary_key=True, default=ids.new_id, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="+")
    model = models.ForeignKey(Model, on_delete=models.CASCADE, related_name="aliases")
    name = models.CharField(max_length=40, validators=[ALIAS_NAME])
    version = models.ForeignKey(ModelVersion, on_delete=models.CASCADE, related_name="aliases")
    moved_at = models.DateTimeField()

    objects = ScopedManager["Alias"]()

    class Meta:
        ordering = ["name"]
        verbose_name_plural = "aliases"
        constraints = [models.UniqueConstraint(fields=["model", "name"], name="alias_once_per_model")]

    def __str__(self) -> str:
        return self.name


class ServingConfig(models.Model):
    """How an engine is to run a version. Immutable; equal settings of a tenant are one row (``digest``).

    Bounds and defaults are in ``catalog.configs``. 0 means "the engine decides" for ``max_model_len``,
    ``kv_cache_bytes`` and ``num_threads``. ``max_waiting`` counts sequences, ``kv_block_tokens`` tokens.
    ``tenant_kv_share`` is a fraction of the KV pool; ``queue_timeout_seconds`` 0 is no limit;
    ``sleep_after_seconds`` 0 never sleeps. The last ``offload_layers`` layers wait in host memory. The least
    ``isolation`` that is accepted, ``mig_profile``, ``memory_limit_bytes`` and ``thread_percentage`` say what part of a
    device is wanted; ``tensor_parallel``, ``pipeline_parallel``, ``expert_parallel`` (0: chosen) and ``tp_over_pcie``
    over how many; ``products`` names those that are accepted (none: any).
    """

    TENANT_FIELD: ClassVar[str] = "tenant_id"

    id = models.UUIDField(primary_key=True, default=ids.new_id, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="+")
    digest = models.CharField(max_length=64)
    engine = models.CharField(max_length=16)
    dtype = models.CharField(max_length=16)
    quantization = models.CharField(max_length=16)
    max_model_len = models.PositiveIntegerField()
    max_num_seqs = models.PositiveIntegerField()
    max_num_batched_tokens = models.PositiveIntegerField()
    max_waiting = models.PositiveIntegerField()
    kv_block_tokens = models.PositiveIntegerField()
    kv_cache_bytes = models.BigIntegerField()
    enable_prefix_cache = models.BooleanField()
    num_threads = models.PositiveIntegerField()
    tenant_kv_share = models.FloatField(default=1.0)
    queue_timeout_seconds = models.FloatField(default=0.0)
    sleep_after_seconds = models.FloatField(default=0.0)
    kv_dtype = models.CharField(max_length=16, default="same")
    offload_layers = models.PositiveIntegerField(default=0)
    watermark_low = models.FloatField()
    watermark_high = models.FloatField()
    watermark_critical = models.FloatField()
    isolation = models.CharField(max_length=16, choices=Requirement, default=Requirement.ANY)
    mig_profile = models.CharField(max_length=24, blank=True, default="")
    memory_limit_bytes = models.BigIntegerField(default=0)
    thread_percentage = models.PositiveSmallIntegerField(default=0)
    tensor_parallel = models.PositiveSmallIntegerField(default=0)
    pipeline_parallel = models.PositiveSmallIntegerField(default=0)
    tp_over_pcie = models.BooleanField(default=False)
    expert_parallel = models.PositiveSmallIntegerField(default=0)
    products = ArrayField(models.CharField(max_length=80), blank=True, default=list)
    created_at = models.DateTimeField()

    objects = ScopedManager["ServingConfig"]()

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(fields=["tenant", "digest"], name="serving_config_once_per_tenant"),
            models.CheckConstraint(
                condition=models.Q(watermark_low__gt=0)
                & models.Q(watermark_low__lt=models.F("watermark_high"))
                & models.Q(watermark_high__lt=models.F("watermark_critical"))
                & models.Q(watermark_critical__lte=1),
                name="serving_config_watermarks_rise",
            ),
            models.CheckConstraint(
                condition=models.Q(kv_cache_bytes__gte=0) & models.Q(max_num_seqs__gte=1), name="serving_config_bounds"
            ),
            models.CheckConstraint(
                condition=models.Q(tenant_kv_share__gt=0)
                & models.Q(tenant_kv_share__lte=1)
                & models.Q(queue_timeout_seconds__gte=0),
                name="serving_config_shares",
            ),
            models.CheckConstraint(condition=models.Q(sleep_after_seconds__gte=0), name="serving_config_sleep"),
            models.CheckConstraint(
                condition=models.Q(isolation__in=Requirement.values)
                & models.Q(memory_limit_bytes__gte=0)
                & models.Q(thread_percentage__lte=100),
                name="serving_config_part",
            ),
        ]

    def __str__(self) -> str:
        return self.digest[:12]


class Runtime(models.Model):
    """The environment that executes a model, by the digest of the engine's lock file. Belongs to the platform."""

    id = models.UUIDField(primary_key=True, default=ids.new_id, editable=False)
    name = models.CharField(max_length=80)
    digest = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField()

    class Meta:
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"{self.name} {self.digest[:12]}"


class Revision(models.Model):
    """Version + serving config + runtime: what is deployed. Numbered per model; immutable."""

    TENANT_FIELD: ClassVar[str] = "tenant_id"

    id = models.UUIDField(primary_key=True, default=ids.new_id, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="+")
    model = models.ForeignKey(Model, on_delete=models.CASCADE, related_name="revisions")
    number = models.PositiveIntegerField()
    version = models.ForeignKey(ModelVersion, on_delete=models.CASCADE, related_name="revisions")
    serving_config = models.ForeignKey(ServingConfig, on_delete=models.PROTECT, related_name="revisions")
    runtime = models.ForeignKey(Runtime, on_delete=models.PROTECT, related_name="revisions")
    created_at = models.DateTimeField()

    objects = ScopedManager["Revision"]()

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(fields=["version", "serving_config", "runtime"], name="revision_once"),
            models.UniqueConstraint(fields=["model", "number"], name="revision_number_once_per_model"),
            models.CheckConstraint(condition=models.Q(number__gte=1), name="revision_number_from_one"),
        ]

    def __str__(self) -> str:
        return f"revision {self.number}"
