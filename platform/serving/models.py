"""Endpoints, grants, deployments and replicas."""

from typing import ClassVar

from django.core.validators import MaxValueValidator, RegexValidator
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from catalog.models import ModelVersion, Revision, ServingConfig
from fleet.models import Node
from kernel import ids
from kernel.scope import ScopedManager
from serving.states import DeploymentState, ReplicaState
from tenants.models import Tenant

ENDPOINT_NAME = RegexValidator(
    r"^[a-z0-9][a-z0-9.-]{0,79}\Z",
    _("Use 1 to 80 lower-case letters, digits, dots and hyphens; begin with a letter or digit."),
)
MAX_REPLICAS = 64
MAX_WEIGHT = 1000
MAX_DRAIN_SECONDS = 3600


class Sticky(models.TextChoices):
    """What keeps a caller on one variant of an endpoint: nothing, its key, the body's ``user``, or a header."""

    NONE = "none", _("nothing: every request is drawn anew")
    KEY = "key", _("the key")
    USER = "user", _("the user named in the request")
    HEADER = "header", _("the header x-millpond-sticky")


class Priority(models.TextChoices):
    """Who gives way when there is not room for all: the lower goes for the higher."""

    LOW = "low", _("low: gives way first")
    NORMAL = "normal", _("normal")
    HIGH = "high", _("high: takes the place of lower ones")

    @property
    def rank(self) -> int:
        """The order, 0 for the lowest."""
        return list(Priority).index(self)


class Endpoint(models.Model):
    """A name that clients call. ``slo`` holds ``ttft_p95_ms``, ``itl_p95_ms``, ``e2e_p95_ms``, ``error_rate``."""

    TENANT_FIELD: ClassVar[str] = "tenant_id"

    id = models.UUIDField(primary_key=True, default=ids.new_id, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="endpoints")
    name = models.CharField(max_length=80, validators=[ENDPOINT_NAME])
    slo = models.JSONField(default=dict)
    sticky = models.CharField(max_length=8, choices=Sticky, default=Sticky.NONE)
    created_at = models.DateTimeField()

    objects = ScopedManager["Endpoint"]()

    class Meta:
        ordering = ["name"]
        constraints = [
            models.UniqueConstraint(fields=["tenant", "name"], name="endpoint_name_per_tenant"),
            models.CheckConstraint(condition=Q(sticky__in=Sticky.values), name="endpoint_sticky_known"),
        ]

    def __str__(self) -> str:
        return self.name


class Grant(models.Model):
    """The owner of an endpoint lets the tenant of this name call it, as ``owner/name``. Seen by both.

    ``tenant`` is empty while no tenant has the name: an owner is told the same either way, and so learns nothing about
    who else is here. It is filled in when such a tenant is made.
    """

    id = models.UUIDField(primary_key=True, default=ids.new_id, editable=False)
    endpoint = models.ForeignKey(Endpoint, on_delete=models.CASCADE, related_name="grants")
    tenant = models.ForeignKey(Tenant, null=True, on_delete=models.CASCADE, related_name="grants_received")
    tenant_slug = models.CharField(max_length=40)
    created_at = models.DateTimeField()
    created_by = models.CharField(max_length=254)

    TENANT_FIELD: ClassVar[str] = "endpoint__tenant_id"
    objects = ScopedManager["Grant"]()

    class Meta:
        ordering = ["-id"]
        constraints = [models.UniqueConstraint(fields=["endpoint", "tenant_slug"], name="grant_once_per_name")]

    def __str__(self) -> str:
        return f"{self.endpoint_id} to {self.tenant_id}"


class Deployment(models.Model):
    """One revision serving behind an endpoint. ``weight`` is its relative share of the endpoint's traffic.

    ``generation`` rises with every change of what is wanted; conditions say which one they describe.
    """

    TENANT_FIELD: ClassVar[str] = "tenant_id"

    id = models.UUIDField(primary_key=True, default=ids.new_id, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="deployments")
    endpoint = models.ForeignKey(Endpoint, on_delete=models.PROTECT, related_name="deployments")
    revision = models.ForeignKey(Revision, on_delete=models.PROTECT, related_name="deployments")
    state = models.CharField(max_length=16, choices=DeploymentState, default=DeploymentState.RUNNING)
    reason = models.CharField(max_length=64, blank=True)
    message = models.TextField(blank=True)
    state_changed_at = models.DateTimeField()
    desired_replicas = models.PositiveSmallIntegerField(validators=[MaxValueValidator(MAX_REPLICAS)])
    weight = models.PositiveSmallIntegerField(default=100, validators=[MaxValueValidator(MAX_WEIGHT)])
    drain_seconds = models.PositiveIntegerField(default=30, validators=[MaxValueValidator(MAX_DRAIN_SECONDS)])
    priority = models.CharField(max_length=8, choices=Priority, default=Priority.NORMAL)
    generation = models.BigIntegerField(default=1)
    created_at = models.DateTimeField()
    created_by = models.CharField(max_length=254)

    objects = ScopedManager["Deployment"]()

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.CheckConstraint(condition=Q(desired_replicas__lte=MAX_REPLICAS), name="deployment_replicas_bounded"),
            models.CheckConstraint(condition=Q(weight__lte=MAX_WEIGHT), name="deployment_weight_bounded"),
            models.CheckConstraint(condition=Q(state__in=DeploymentState.values), name="deployment_state_known"),
            models.CheckConstraint(condition=Q(priority__in=Priority.values), name="deployment_priority_known"),
        ]

    def __str__(self) -> str:
        return str(self.id)

    @property
    def rank(self) -> int:
        """Its priority as a number; higher is more important."""
        return Priority(self.priority).rank


class Replica(models.Model):
    """One engine on its partitions. ``generation`` fences: reports of an older one are ignored, agents refuse one.

    ``token`` is the bearer secret of the engine's port. ``failures`` counts failures since it last was ready for a
    while; ``retry_at`` is when a failed or given-back replica may be placed again. ``recalled`` is set on a failed
    replica that its node was told to give up. ``node_generation`` is the node's assignment counter at the last change
    of what the node should do with it: only a report that has applied it proves that the replica is gone.
    ``explanation`` keeps the planner's last answer: why here, or why not. ``parallel`` is empty for one device; else
    how the ranks divide the work (``tensor``, ``pipeline``, ``expert``) and the ``port`` of the first rank's node where
    they meet. ``node`` is that of the first rank; where there are more, each has a :class:`Member`. ``moving_at`` is
    when it was asked to leave its place for another once its successor serves; ``moving`` has reason and message.
    """

    TENANT_FIELD: ClassVar[str] = "tenant_id"

    id = models.UUIDField(primary_key=True, default=ids.new_id, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    deployment = models.ForeignKey(Deployment, on_delete=models.CASCADE, related_name="replicas")
    state = models.CharField(max_length=16, choices=ReplicaState, default=ReplicaState.PENDING)
    reason = models.CharField(max_length=64, blank=True)
    message = models.TextField(blank=True)
    state_changed_at = models.DateTimeField()
    generation = models.BigIntegerField(default=1)
    node = models.ForeignKey(Node, null=True, on_delete=models.PROTECT, related_name="replicas")
    token = models.CharField(max_length=64)
    address = models.CharField(max_length=255, blank=True)
    progress = models.FloatField(null=True)
    restarts = models.PositiveIntegerField(default=0)
    failures = models.PositiveIntegerField(default=0)
    retry_at = models.DateTimeField(null=True)
    recalled = models.BooleanField(default=False)
    node_generation = models.BigIntegerField(default=0)
    explanation = models.JSONField(default=dict)
    parallel = models.JSONField(default=dict)
    moving_at = models.DateTimeField(null=True)
    moving = models.JSONField(default=dict)
    ledger = models.JSONField(null=True)
    stats = models.JSONField(null=True)
    observed_at = models.DateTimeField(null=True)
    log_tail = models.JSONField(default=list)
    ready_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField()

    objects = ScopedManager["Replica"]()

    class Meta:
        ordering = ["id"]
        constraints = [
            models.CheckConstraint(condition=Q(state__in=ReplicaState.values), name="replica_state_known"),
            models.CheckConstraint(
                condition=Q(node__isnull=False)
                | Q(state__in=[_s.value for _s in (ReplicaState.PENDING, ReplicaState.STOPPED, ReplicaState.FAILED)]),
                name="replica_placed_has_node",
            ),
        ]
        indexes = [models.Index(fields=["state"], condition=~Q(state=ReplicaState.STOPPED), name="replica_live_state")]

    def __str__(self) -> str:
        return self.short_id

    @property
    def short_id(self) -> str:
        """The last eight hexadecimal digits: UUIDv7 keeps its random part there."""
        return self.id.hex[-8:]


class Member(models.Model):
    """One of several nodes that run ranks of one replica. Replicas on one node have none.

    ``node_generation`` is as on the replica, for this node; ``phase``, ``reason`` and ``message`` are what it reported
    of its ranks ("" until it has). ``gone``: it has proved that they have ended, and their partitions are free.
    """

    TENANT_FIELD: ClassVar[str] = "replica__tenant_id"

    id = models.UUIDField(primary_key=True, default=ids.new_id, editable=False)
    replica = models.ForeignKey(Replica, on_delete=models.CASCADE, related_name="members")
    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="+")
    node_generation = models.BigIntegerField(default=0)
    phase = models.CharField(max_length=16, blank=True)
    reason = models.CharField(max_length=64, blank=True)
    message = models.TextField(blank=True)
    gone = models.BooleanField(default=False)

    objects = ScopedManager["Member"]()

    class Meta:
        ordering = ["id"]
        constraints = [models.UniqueConstraint(fields=["replica", "node"], name="member_once_per_node")]

    def __str__(self) -> str:
        return f"{self.replica_id} on {self.node_id}"


class Peak(models.Model):
    """The most that engines measured of a version under one serving config on one product of device; bytes.

    ``workspace_bytes`` is one step at the largest batch that the config allows, measured as the engine starts.
    """

    TENANT_FIELD: ClassVar[str] = "tenant_id"

    id = models.UUIDField(primary_key=True, default=ids.new_id, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="+")
    version = models.ForeignKey(ModelVersion, on_delete=models.CASCADE, related_name="+")
    serving_config = models.ForeignKey(ServingConfig, on_delete=models.CASCADE, related_name="+")
    kind = models.CharField(max_length=16)
    product = models.CharField(max_length=120)
    weights_bytes = models.BigIntegerField()
    workspace_bytes = models.BigIntegerField()
    context_bytes = models.BigIntegerField()
    measured_at = models.DateTimeField()

    objects = ScopedManager["Peak"]()

    class Meta:
        ordering = ["id"]
        constraints = [
            models.UniqueConstraint(
                fields=["version", "serving_config", "kind", "product"], name="peak_once_per_profile"
            )
        ]

    def __str__(self) -> str:
        return f"{self.version_id} on {self.product}"
