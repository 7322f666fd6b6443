"""Nodes, devices, partitions, gateways and the tokens with which machines join.

The fleet belongs to the platform, not to tenants: nothing here is tenant-scoped, and platform admins
alone read it whole.
"""

from typing import ClassVar

from django.contrib.postgres.constraints import ExclusionConstraint
from django.contrib.postgres.fields import ArrayField, IntegerRangeField, RangeOperators
from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from fleet.states import DeviceState, NodeState
from kernel import ids
from kernel.isolation import Isolation, Requirement
from kernel.scope import ScopedManager
from tenants.models import Tenant


class Node(models.Model):
    """A machine with an agent. ``machine_id`` is made once by the agent: the same machine is always the same node.

    ``health_sequence`` is the newest health fact that was acted on. ``held_host_bytes`` and ``held_millicpus`` are what
    the replicas placed here were promised of host memory and CPU. ``returns_to`` is the state a lost node goes back to
    when it reports. ``accepts_gap`` is set when the person who drains it accepts that replicas stop before their
    successors are ready. ``stored_sha256`` are files that its agent keeps: placement prefers nodes with the weights.
    ``walls`` are the kinds of isolation that its host offers, each with the reason why not; ``facts`` are its RDMA
    ports and NUMA nodes. Heartbeats write ``last_seen_at`` and the lease, which no index covers, so that a heartbeat
    stays one cheap update; ``details_at`` is when the numbers of its devices were written, ``looked_at`` when a report
    was last looked at whole. ``settled`` is the digest of the last report that left nothing to do: the same again is a
    heartbeat and no more.
    """

    id = models.UUIDField(primary_key=True, default=ids.new_id, editable=False)
    name = models.CharField(max_length=120)
    machine_id = models.CharField(max_length=80, unique=True)
    state = models.CharField(max_length=16, choices=NodeState, default=NodeState.JOINING)
    reason = models.CharField(max_length=64, blank=True)
    message = models.TextField(blank=True)
    state_changed_at = models.DateTimeField()
    returns_to = models.CharField(max_length=16, blank=True)
    accepts_gap = models.BooleanField(default=False)
    created_at = models.DateTimeField()

    credential_digest = models.CharField(max_length=64, unique=True, null=True)
    last_seen_at = models.DateTimeField(null=True)
    lease_expires_at = models.DateTimeField(null=True)
    details_at = models.DateTimeField(null=True)
    looked_at = models.DateTimeField(null=True)
    settled = models.CharField(max_length=32, blank=True)

    agent_version = models.CharField(max_length=40, blank=True)
    boot_id = models.CharField(max_length=80, blank=True)
    agent_id = models.CharField(max_length=80, blank=True)
    sequence = models.BigIntegerField(default=0)
    health_sequence = models.BigIntegerField(default=0)
    data_address = models.CharField(max_length=255, blank=True)
    rank_address = models.CharField(max_length=64, blank=True)
    applied_generation = models.BigIntegerField(default=0)

    hostname = models.CharField(max_length=255, blank=True)
    os = models.CharField(max_length=120, blank=True)
    cpus = models.PositiveIntegerField(default=0)
    memory_bytes = models.BigIntegerField(default=0)
    memory_available_bytes = models.BigIntegerField(default=0)
    disk_free_bytes = models.BigIntegerField(default=0)
    cpu_used = models.FloatField(null=True)
    stored_sha256 = ArrayField(models.CharField(max_length=64), default=list)
    walls = models.JSONField(default=list)
    fault_domain = models.CharField(max_length=80, blank=True)
    facts = models.JSONField(default=dict)
    held_host_bytes = models.BigIntegerField(default=0)
    held_millicpus = models.BigIntegerField(default=0)

    class Meta:
        ordering = ["name", "id"]
        constraints = [
            models.CheckConstraint(condition=Q(state__in=NodeState.values), name="node_state_known"),
            models.CheckConstraint(condition=Q(held_host_bytes__gte=0), name="node_held_host_not_negative"),
            models.CheckConstraint(condition=Q(held_millicpus__gte=0), name="node_held_cpus_not_negative"),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def has_mps(self) -> bool:
        """Whether shares of its GPUs can be limited by the driver."""
        return any(wall.get("name") == "mps" and wall.get("used") for wall in self.walls)


class DeviceKind(models.TextChoices):
    """What a device is. Simulated ones are labelled wherever they are shown."""

    CUDA = "cuda", _("GPU")
    CPU = "cpu", _("CPU")
    SIMULATED = "simulated", _("Simulated GPU")


class Device(models.Model):
    """What a replica can be placed on, identified by ``uuid`` and by nothing else.

    ``held_bytes`` is the sum of its partitions, ``held_percent`` of their limits on multiprocessors, both moved in
    their transactions; the CHECKs refuse over-commitment.
    ``present`` is false when the node's last report did not list the device. ``stand_in``: a simulated device on which
    its node runs stand-ins for engines. ``facts`` are what its node says of it beyond the columns (links, errors,
    MIG), as in its report, ``readings`` what drifts (use of memory bandwidth, clocks, PCIe, processes), written every
    few seconds. While it is quarantined, ``repair`` is what it waits for and ``dead`` says that what ran on
    it does not answer: gateways are told of nothing there. ``fault_at`` is when it last had a fault.

    A MIG instance is a device with a ``parent``, of which it has ``slice_count`` memory slices from ``slice_start`` on:
    no two of a GPU overlap. ``layout`` is how a GPU is wanted to be cut, as pairs of profile id and first slice
    (``None``: as it is), ``layout_before`` what a roll-back goes to; phase and message are its node's.
    """

    id = models.UUIDField(primary_key=True, default=ids.new_id, editable=False)
    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="devices")
    uuid = models.CharField(max_length=96, unique=True)
    kind = models.CharField(max_length=16, choices=DeviceKind)
    product = models.CharField(max_length=120)
    memory_bytes = models.BigIntegerField()
    held_bytes = models.BigIntegerField(default=0)
    held_percent = models.PositiveSmallIntegerField(default=0)
    state = models.CharField(max_length=16, choices=DeviceState, default=DeviceState.HEALTHY)
    reason = models.CharField(max_length=64, blank=True)
    message = models.TextField(blank=True)
    state_changed_at = models.DateTimeField()
    present = models.BooleanField(default=True)

    memory_used_bytes = models.BigIntegerField(default=0)
    compute_capability = models.CharField(max_length=16, blank=True)
    driver_version = models.CharField(max_length=40, blank=True)
    pci_bus_id = models.CharField(max_length=32, blank=True)
    utilization = models.FloatField(null=True)
    temperature_c = models.FloatField(null=True)
    power_w = models.FloatField(null=True)
    power_limit_w = models.FloatField(null=True)
    stand_in = models.BooleanField(default=False)
    facts = models.JSONField(default=dict)
    readings = models.JSONField(default=dict)
    dead = models.BooleanField(default=False)
    repair = models.CharField(max_length=16, blank=True)
    fault_at = models.DateTimeField(null=True)

    parent = models.ForeignKey("self", null=True, on_delete=models.CASCADE, related_name="instances")
    slice_start = models.PositiveSmallIntegerField(default=0)
    slice_count = models.PositiveSmallIntegerField(default=0)
    layout = models.JSONField(null=True)
    layout_before = models.JSONField(null=True)
    layout_generation = models.BigIntegerField(default=0)
    layout_phase = models.CharField(max_length=16, blank=True)
    layout_message = models.TextField(blank=True)

    class Meta:
        ordering = ["node__name", "pci_bus_id", "uuid"]
        constraints = [
            ExclusionConstraint(
                name="device_instances_apart",
                expressions=[
                    ("parent", RangeOperators.EQUAL),
                    (
                        models.Func(
                            "slice_start",
                            F("slice_start") + F("slice_count"),
                            function="int4range",
                            output_field=IntegerRangeField(),
                        ),
                        RangeOperators.OVERLAPS,
                    ),
                ],
                condition=Q(parent__isnull=False, present=True),
            ),
            models.CheckConstraint(condition=Q(held_bytes__gte=0), name="device_held_not_negative"),
            models.CheckConstraint(condition=Q(held_bytes__lte=F("memory_bytes")), name="device_not_over_committed"),
            models.CheckConstraint(condition=Q(held_percent__lte=100), name="device_compute_not_over_committed"),
            models.CheckConstraint(condition=Q(kind__in=DeviceKind.values), name="device_kind_known"),
            models.CheckConstraint(condition=Q(state__in=DeviceState.values), name="device_state_known"),
        ]
        indexes = [models.Index(fields=["state"], condition=~Q(state=DeviceState.HEALTHY), name="device_not_healthy")]

    def __str__(self) -> str:
        return f"{self.product} {self.uuid}"

    @property
    def is_cut(self) -> bool:
        """Whether the GPU is, or is to be, cut by MIG: then only its instances can be given away."""
        return self.parent_id is None and bool(self.layout or (self.facts.get("mig") or {}).get("enabled"))


#: All partitions of a device are of one of these groups: what one owner has alone, what the driver limits, what
#: limits itself. A limit of the driver is none while a neighbour outside of it may take what it likes.
_GROUPS = {Isolation.EXCLUSIVE: 1, Isolation.MPS: 2}


class Partition(models.Model):
    """A part of a device with exactly one owner, the rank of a replica.

    A device is either one exclusive partition, or any number of MPS shares, or any number of cooperative ones, never a
    mix: the exclusion constraint says so. ``thread_percentage`` is an MPS share's limit on the multiprocessors (0:
    none). ``host_bytes`` and ``millicpus`` are what the owner holds of the node beside the device.
    """

    id = models.UUIDField(primary_key=True, default=ids.new_id, editable=False)
    device = models.ForeignKey(Device, on_delete=models.PROTECT, related_name="partitions")
    isolation = models.CharField(max_length=16, choices=Isolation)
    memory_bytes = models.BigIntegerField()
    host_bytes = models.BigIntegerField(default=0)
    millicpus = models.PositiveIntegerField(default=0)
    thread_percentage = models.PositiveSmallIntegerField(default=0)
    replica_id = models.UUIDField()
    rank = models.PositiveSmallIntegerField(default=0)
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["replica_id", "rank"], name="partition_one_per_rank"),
            models.UniqueConstraint(
                fields=["device"], condition=Q(isolation=Isolation.EXCLUSIVE), name="partition_one_exclusive_owner"
            ),
            models.UniqueConstraint(
                fields=["device"], condition=Q(isolation=Isolation.MIG), name="partition_one_mig_owner"
            ),
            ExclusionConstraint(
                name="partition_exclusive_or_shared",
                expressions=[
                    ("device", RangeOperators.EQUAL),
                    (
                        models.Case(
                            *(
                                models.When(isolation=isolation, then=models.Value(group))
                                for isolation, group in _GROUPS.items()
                            ),
                            default=models.Value(0),
                            output_field=models.IntegerField(),
                        ),
                        RangeOperators.NOT_EQUAL,
                    ),
                ],
            ),
            models.CheckConstraint(condition=Q(memory_bytes__gt=0), name="partition_has_memory"),
            models.CheckConstraint(condition=Q(isolation__in=Isolation.values), name="partition_isolation_known"),
            models.CheckConstraint(
                condition=Q(thread_percentage=0) | Q(isolation=Isolation.MPS, thread_percentage__lte=100),
                name="partition_threads_by_mps",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.isolation} {self.memory_bytes} of {self.device_id}"


class IsolationPolicy(models.Model):
    """The least isolation that every replica of a tenant must have. A tenant without a row requires nothing."""

    TENANT_FIELD: ClassVar[str] = "tenant_id"

    tenant = models.OneToOneField(Tenant, primary_key=True, on_delete=models.CASCADE, related_name="+")
    least = models.CharField(max_length=16, choices=Requirement, default=Requirement.ANY)
    set_at = models.DateTimeField(null=True)
    set_by = models.CharField(max_length=254)

    objects = ScopedManager["IsolationPolicy"]()

    class Meta:
        verbose_name_plural = "isolation policies"
        constraints = [models.CheckConstraint(condition=Q(least__in=Requirement.values), name="isolation_policy_known")]

    def __str__(self) -> str:
        return self.least


class HealthEvent(models.Model):
    """Something a device or node said about its health. Kept for a bounded time."""

    id = models.UUIDField(primary_key=True, default=ids.new_id, editable=False)
    at = models.DateTimeField(db_index=True)
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="health_events")
    device = models.ForeignKey(Device, null=True, on_delete=models.CASCADE, related_name="health_events")
    code = models.CharField(max_length=64)
    message = models.TextField(blank=True)
    data = models.JSONField(default=dict)

    class Meta:
        ordering = ["-id"]

    def __str__(self) -> str:
        return self.code


class MachineKind(models.TextChoices):
    """What joins with a token."""

    NODE = "node", _("Node")
    GATEWAY = "gateway", _("Gateway")


class JoinToken(models.Model):
    """A one-time token with which a machine gets its own credential. Only its digest is kept."""

    id = models.UUIDField(primary_key=True, default=ids.new_id, editable=False)
    kind = models.CharField(max_length=16, choices=MachineKind)
    name = models.CharField(max_length=120, blank=True)
    digest = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField()
    created_by = models.CharField(max_length=254)
    expires_at = models.DateTimeField(db_index=True)
    used_at = models.DateTimeField(null=True)
    used_by = models.UUIDField(null=True)

    class Meta:
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class Gateway(models.Model):
    """A process that takes inference traffic. It is live while its lease runs.

    ``ejected`` and ``adaptive`` are what it last said of replicas it avoids and of its working points.
    """

    id = models.UUIDField(primary_key=True, default=ids.new_id, editable=False)
    name = models.CharField(max_length=120)
    machine_id = models.CharField(max_length=80, unique=True)
    credential_digest = models.CharField(max_length=64, unique=True, null=True)
    version = models.CharField(max_length=40, blank=True)
    url = models.CharField(max_length=255, blank=True)
    applied_generation = models.BigIntegerField(default=0)
    table_age_seconds = models.FloatField(default=0)
    in_flight = models.PositiveIntegerField(default=0)
    journal_pending = models.PositiveBigIntegerField(default=0)
    limits_shared = models.BooleanField(default=True)
    ejected = models.JSONField(default=list)
    adaptive = models.JSONField(default=list)
    created_at = models.DateTimeField()
    last_seen_at = models.DateTimeField(null=True)
    lease_expires_at = models.DateTimeField(null=True)
    removed_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["name", "id"]

    def __str__(self) -> str:
        return self.name


class LoopRun(models.Model):
    """When a loop last ran: lets the lease loop tell "the nodes were silent" from "nobody listened"."""

    name = models.CharField(primary_key=True, max_length=80)
    at = models.DateTimeField()

    def __str__(self) -> str:
        return self.name
