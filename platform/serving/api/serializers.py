"""Bodies of the serving API."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from kernel.api.bodies import Body
from kernel.api.numbers import NumberField
from serving import selectors
from serving.conditions import Health
from serving.models import MAX_DRAIN_SECONDS, MAX_REPLICAS, MAX_WEIGHT, Deployment, Endpoint, Grant, Priority, Sticky
from serving.selectors import DeploymentDetail, PlacedReplica
from serving.services.deployments import DEFAULT_DRAIN_SECONDS, DEFAULT_WEIGHT
from telemetry.series import METRICS, Point


class EndpointIn(Body):
    """A new endpoint."""

    name = serializers.CharField(max_length=80)
    slo = serializers.DictField(child=NumberField(allow_null=True), required=False, default=dict)
    sticky = serializers.ChoiceField(choices=Sticky.choices, required=False, default=Sticky.NONE.value)


class EndpointPatch(Body):
    """What can be changed of an endpoint; ``slo`` is replaced as a whole."""

    slo = serializers.DictField(
        child=NumberField(allow_null=True),
        required=False,
        help_text="ttft_p95_ms, itl_p95_ms, e2e_p95_ms (milliseconds), error_rate (0 to 1).",
    )
    sticky = serializers.ChoiceField(
        choices=Sticky.choices, required=False, help_text="What keeps a caller on one deployment behind the endpoint."
    )


class GrantIn(Body):
    """Who may call."""

    tenant = serializers.SlugField(max_length=40)


class GrantOut(serializers.ModelSerializer[Grant]):
    """A tenant that may call the endpoint as ``owner/name``; whether there is one of that name is not told."""

    tenant = serializers.CharField(source="tenant_slug")

    class Meta:
        model = Grant
        fields = ["id", "tenant", "created_at", "created_by"]


class VariantOut(serializers.Serializer[Any]):
    """A deployment behind an endpoint, in short."""

    id = serializers.UUIDField()
    state = serializers.CharField()
    weight = serializers.IntegerField()
    desired_replicas = serializers.IntegerField()
    ready_replicas = serializers.IntegerField()


class EndpointOut(serializers.ModelSerializer[Endpoint]):
    """An endpoint; ``state`` and ``sentence`` are derived from the replicas behind it."""

    slo = serializers.DictField(child=serializers.FloatField())
    state = serializers.SerializerMethodField()
    sentence = serializers.SerializerMethodField()
    deployments = serializers.SerializerMethodField()
    grants = GrantOut(many=True)

    class Meta:
        model = Endpoint
        fields = ["id", "name", "slo", "sticky", "created_at", "state", "sentence", "deployments", "grants"]

    def get_state(self, row: Endpoint) -> str:
        return selectors.endpoint_health(row).word

    def get_sentence(self, row: Endpoint) -> str:
        return selectors.endpoint_health(row).sentence

    @extend_schema_field(VariantOut(many=True))
    def get_deployments(self, row: Endpoint) -> Any:
        return [_variant(deployment) for deployment in row.deployments.all()]


def _variant(deployment: Deployment) -> dict[str, Any]:
    health = selectors.health_of(deployment)
    return {
        "id": str(deployment.id),
        "state": health.word,
        "weight": deployment.weight,
        "desired_replicas": deployment.desired_replicas,
        "ready_replicas": health.ready,
    }


class CallableEndpointOut(serializers.Serializer[Any]):
    """A name that the tenant may call; ``model`` is what goes into the request."""

    id = serializers.UUIDField(source="endpoint.id")
    model = serializers.CharField()
    owner = serializers.CharField(source="owner.slug")
    own = serializers.BooleanField()
    state = serializers.CharField(source="health.word")
    sentence = serializers.CharField(source="health.sentence")


class DeploymentIn(Body):
    """What to serve, behind which endpoint (made when missing), and how often. ``version`` is a number or an alias."""

    endpoint = serializers.CharField(max_length=80)
    model = serializers.CharField(max_length=80)
    version = serializers.CharField(max_length=40)
    replicas = serializers.IntegerField(min_value=0, max_value=MAX_REPLICAS, default=1)
    config = serializers.DictField(
        required=False, default=dict, help_text="Fields of the serving config; what is left out has its default."
    )
    weight = serializers.IntegerField(min_value=0, max_value=MAX_WEIGHT, default=DEFAULT_WEIGHT)
    drain_seconds = serializers.IntegerField(min_value=0, max_value=MAX_DRAIN_SECONDS, default=DEFAULT_DRAIN_SECONDS)
    priority = serializers.ChoiceField(
        choices=Priority.choices, required=False,
        help_text="Who gives way when there is not room for all; high is for the tenant's admins.",
    )  # fmt: skip


class DeploymentPatch(Body):
    """What can be changed of a deployment."""

    replicas = serializers.IntegerField(min_value=0, max_value=MAX_REPLICAS, required=False)
    weight = serializers.IntegerField(min_value=0, max_value=MAX_WEIGHT, required=False)
    priority = serializers.ChoiceField(choices=Priority.choices, required=False)


class RevisionOut(serializers.Serializer[Any]):
    """Version + serving config + runtime."""

    id = serializers.UUIDField()
    number = serializers.IntegerField()
    runtime = serializers.CharField(source="runtime.digest")
    config = serializers.SerializerMethodField()

    @extend_schema_field(serializers.DictField())
    def get_config(self, row: Any) -> dict[str, Any]:
        left_out = {"id", "tenant", "digest", "created_at"}
        fields = [field for field in row.serving_config._meta.concrete_fields if field.name not in left_out]
        return {field.name: getattr(row.serving_config, field.attname) for field in fields}


class ConditionOut(serializers.Serializer[Any]):
    """A statement about a deployment; ``status`` is True, False or Unknown."""

    type = serializers.CharField()
    status = serializers.CharField()
    reason = serializers.CharField()
    message = serializers.CharField()
    observed_generation = serializers.IntegerField()


class ReplicaOut(serializers.Serializer[Any]):
    """One engine. ``ledger`` (bytes) and ``stats`` are as the engine reported them last, at ``observed_at``."""

    id = serializers.UUIDField(source="replica.id")
    short_id = serializers.CharField(source="replica.short_id")
    state = serializers.CharField(source="replica.state")
    reason = serializers.CharField(source="replica.reason")
    message = serializers.CharField(source="replica.message")
    state_changed_at = serializers.DateTimeField(source="replica.state_changed_at")
    generation = serializers.IntegerField(source="replica.generation")
    node = serializers.CharField(source="replica.node.name", default=None, allow_null=True)
    nodes = serializers.SerializerMethodField()
    parallel = serializers.DictField(
        source="replica.parallel",
        help_text="How several ranks divide the work (tensor, pipeline, expert); empty on one device.",
    )
    device = serializers.SerializerMethodField()
    memory_bytes = serializers.SerializerMethodField()
    isolation = serializers.SerializerMethodField()
    restarts = serializers.IntegerField(source="replica.restarts")
    failures = serializers.IntegerField(source="replica.failures")
    retry_at = serializers.DateTimeField(source="replica.retry_at", allow_null=True)
    progress = serializers.FloatField(source="replica.progress", allow_null=True)
    ready_at = serializers.DateTimeField(source="replica.ready_at", allow_null=True)
    observed_at = serializers.DateTimeField(source="replica.observed_at", allow_null=True)
    created_at = serializers.DateTimeField(source="replica.created_at")
    ledger = serializers.DictField(source="replica.ledger", allow_null=True)
    stats = serializers.DictField(source="replica.stats", allow_null=True)
    explanation = serializers.DictField(source="replica.explanation")

    @extend_schema_field(serializers.ListField(child=serializers.CharField()))
    def get_nodes(self, row: PlacedReplica) -> list[str]:
        """Every node that runs ranks of it, that of the first rank first."""
        return list(dict.fromkeys(part.device.node.name for part in row.partitions))

    def get_device(self, row: PlacedReplica) -> str | None:
        return row.device.device.uuid if row.device else None

    def get_memory_bytes(self, row: PlacedReplica) -> int | None:
        return row.device.memory_bytes if row.device else None

    def get_isolation(self, row: PlacedReplica) -> str | None:
        return row.device.isolation if row.device else None


class DeploymentOut(serializers.ModelSerializer[Deployment]):
    """A deployment as lists show it; ``state``, ``sentence`` and ``ready_replicas`` are derived from its replicas."""

    endpoint = serializers.CharField(source="endpoint.name")
    model = serializers.CharField(source="revision.model.name")
    version = serializers.IntegerField(source="revision.version.number")
    revision = RevisionOut()
    wanted = serializers.CharField(source="state")
    state = serializers.SerializerMethodField()
    sentence = serializers.SerializerMethodField()
    ready_replicas = serializers.SerializerMethodField()

    class Meta:
        model = Deployment
        fields = [
            "id", "endpoint", "model", "version", "revision", "wanted", "state", "sentence", "desired_replicas",
            "ready_replicas", "weight", "priority", "drain_seconds", "generation", "created_at", "created_by",
        ]  # fmt: skip

    def _health(self, row: Deployment) -> Health:
        return self.context.get("health") or selectors.health_of(row)

    def get_state(self, row: Deployment) -> str:
        return self._health(row).word

    def get_sentence(self, row: Deployment) -> str:
        return self._health(row).sentence

    def get_ready_replicas(self, row: Deployment) -> int:
        return self._health(row).ready


class DeploymentDetailOut(DeploymentOut):
    """A deployment with conditions and replicas."""

    conditions = serializers.SerializerMethodField()
    replicas = serializers.SerializerMethodField()

    class Meta(DeploymentOut.Meta):
        fields = [*DeploymentOut.Meta.fields, "conditions", "replicas"]

    @extend_schema_field(ConditionOut(many=True))
    def get_conditions(self, row: Deployment) -> Any:
        return ConditionOut(self._health(row).conditions, many=True).data

    @extend_schema_field(ReplicaOut(many=True))
    def get_replicas(self, row: Deployment) -> Any:
        return ReplicaOut(self.context["replicas"], many=True).data


def detail_body(detail: DeploymentDetail) -> Any:
    """The body of one deployment."""
    context = {"health": detail.health, "replicas": detail.replicas}
    return DeploymentDetailOut(detail.deployment, context=context).data


class LogsOut(serializers.Serializer[Any]):
    """The last lines of an engine's log."""

    lines = serializers.ListField(child=serializers.CharField())


class SeriesOut(serializers.Serializer[Any]):
    """Points of one replica, ten seconds apart, as columns: ``at`` beside one list per metric."""

    replica_id = serializers.UUIDField()
    at = serializers.ListField(child=serializers.DateTimeField())
    metrics = serializers.DictField(child=serializers.ListField(child=serializers.FloatField(allow_null=True)))


class MetricsOut(serializers.Serializer[Any]):
    """Series of the replicas of a deployment."""

    interval_seconds = serializers.IntegerField()
    series = SeriesOut(many=True)


def series_body(replica_id: Any, points: list[Point]) -> dict[str, Any]:
    """Columns from rows."""
    return {
        "replica_id": replica_id,
        "at": [point.at for point in points],
        "metrics": {name: [getattr(point, name) for point in points] for name in METRICS},
    }
