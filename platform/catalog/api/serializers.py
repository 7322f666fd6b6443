"""What comes in and goes out over REST."""

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from catalog.models import Alias, Model, ModelVersion, VersionFile
from catalog.states import VersionState
from kernel.api.bodies import Body
from kernel.isolation import Requirement


class ModelIn(Body):
    name = serializers.CharField(max_length=63)
    description = serializers.CharField(max_length=2000, required=False, default="", allow_blank=True)


class AliasOut(serializers.ModelSerializer[Alias]):
    alias = serializers.CharField(source="name")
    version = serializers.IntegerField(source="version.number")

    class Meta:
        model = Alias
        fields = ["id", "alias", "version", "moved_at"]


class ModelOut(serializers.ModelSerializer[Model]):
    """``latest_version`` and ``latest_ready_version`` are numbers, null while there is none."""

    latest_version = serializers.IntegerField(source="latest_number", allow_null=True)
    latest_ready_version = serializers.IntegerField(source="latest_ready", allow_null=True)
    aliases = AliasOut(many=True)

    class Meta:
        model = Model
        fields = ["id", "name", "description", "latest_version", "latest_ready_version", "aliases", "created_at"]


class FileIn(Body):
    path = serializers.CharField(max_length=255, trim_whitespace=False)
    size = serializers.IntegerField(min_value=0)
    sha256 = serializers.RegexField(r"^[0-9a-f]{64}$")


class VersionIn(Body):
    files = FileIn(many=True, allow_empty=False)
    description = serializers.CharField(max_length=2000, required=False, default="", allow_blank=True)
    isolation = serializers.ChoiceField(
        choices=Requirement.choices, required=False, default=Requirement.ANY.value,
        help_text="The least that every replica of it must have, whatever it is deployed with.",
    )  # fmt: skip


class FileOut(serializers.ModelSerializer[VersionFile]):
    """``state``: waiting, uploading (``offset`` bytes are here), verifying, verified. ``upload_url`` while open."""

    state = serializers.SerializerMethodField()
    offset = serializers.SerializerMethodField()
    upload_url = serializers.SerializerMethodField()

    class Meta:
        model = VersionFile
        fields = ["id", "path", "size", "sha256", "state", "offset", "upload_url"]

    @extend_schema_field(serializers.CharField())
    def get_state(self, file: VersionFile) -> str:
        if file.artifact_id is not None:
            return "verified"
        upload = next(iter(file.open_uploads), None)  # type: ignore[attr-defined]
        if upload is None:
            return "waiting"
        return "verifying" if upload.offset == upload.length else "uploading"

    @extend_schema_field(serializers.IntegerField())
    def get_offset(self, file: VersionFile) -> int:
        if file.artifact_id is not None:
            return file.size
        return next((upload.offset for upload in file.open_uploads), 0)  # type: ignore[attr-defined]

    @extend_schema_field(serializers.CharField(allow_null=True))
    def get_upload_url(self, file: VersionFile) -> str | None:
        slug = self.context["tenant"].slug
        ids = (upload.id for upload in file.open_uploads)  # type: ignore[attr-defined]
        return next((f"/api/v1/tenants/{slug}/uploads/{upload_id}" for upload_id in ids), None)


class VersionOut(serializers.ModelSerializer[ModelVersion]):
    """``reason`` and ``message`` say why it is where it is; ``metadata`` and ``estimate`` come with ``ready``."""

    model = serializers.CharField(source="model.name")
    state = serializers.ChoiceField(choices=[state.value for state in VersionState])
    chat_template = serializers.BooleanField(source="has_chat_template")
    metadata = serializers.DictField()
    estimate = serializers.DictField(child=serializers.IntegerField())
    files = FileOut(many=True)
    aliases = serializers.SerializerMethodField()

    class Meta:
        model = ModelVersion
        fields = [
            "id",
            "model",
            "number",
            "description",
            "isolation",
            "state",
            "reason",
            "message",
            "state_changed_at",
            "format",
            "architecture",
            "parameters",
            "size_bytes",
            "max_model_len",
            "chat_template",
            "metadata",
            "estimate",
            "files",
            "aliases",
            "created_at",
        ]

    @extend_schema_field(serializers.ListField(child=serializers.CharField()))
    def get_aliases(self, version: ModelVersion) -> list[str]:
        return [alias.name for alias in version.aliases.all()]


class AliasIn(Body):
    version = serializers.IntegerField(min_value=1, max_value=2_147_483_647)
