"""Bodies of the fleet API."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from fleet import faults, selectors
from fleet.layouts import MAX_INSTANCES
from fleet.models import Device, Gateway, HealthEvent, JoinToken, MachineKind, Node, Partition
from kernel import clock
from kernel.api.bodies import Body


class HolderOut(serializers.Serializer[Any]):
    """Who owns a partition."""

    tenant = serializers.CharField()
    endpoint = serializers.CharField()
    deployment_id = serializers.UUIDField()
    state = serializers.CharField()


class PartitionOut(serializers.ModelSerializer[Partition]):
    """A part of a device; bytes."""

    holder = serializers.SerializerMethodField()

    class Meta:
        model = Partition
        fields = [
            "id", "isolation", "memory_bytes", "thread_percentage", "host_bytes", "millicpus", "replica_id", "rank",
            "created_at", "holder",
        ]  # fmt: skip

    @extend_schema_field(HolderOut(allow_null=True))
    def get_holder(self, row: Partition) -> dict[str, Any] | None:
        holder = self.context.get("holders", {}).get(row.replica_id)
        return None if holder is None else HolderOut(holder).data


class DeviceOut(serializers.ModelSerializer[Device]):
    """A device with its partitions; bytes, degrees Celsius, watts."""

    node = serializers.CharField(source="node.name")
    node_id = serializers.UUIDField()
    free_bytes = serializers.SerializerMethodField()
    repair_command = serializers.SerializerMethodField()
    parent_uuid = serializers.CharField(source="parent.uuid", default=None, allow_null=True, read_only=True)
    partitions = PartitionOut(many=True)

    class Meta:
        model = Device
        fields = [
            "id", "node", "node_id", "uuid", "kind", "product", "state", "reason", "message", "state_changed_at",
            "present", "stand_in", "repair", "repair_command", "dead", "fault_at", "memory_bytes", "held_bytes",
            "held_percent", "free_bytes", "memory_used_bytes", "compute_capability", "driver_version", "pci_bus_id",
            "utilization", "temperature_c", "power_w", "power_limit_w", "facts", "readings", "parent_uuid",
            "slice_start", "slice_count", "layout", "layout_generation", "layout_phase", "layout_message", "partitions",
        ]  # fmt: skip

    def get_free_bytes(self, row: Device) -> int:
        return row.memory_bytes - row.held_bytes

    @extend_schema_field(serializers.CharField(help_text="What an operator runs on the node; empty: nothing to run."))
    def get_repair_command(self, row: Device) -> str:
        return faults.command_for(row.repair, row.uuid)


class PlacementIn(Body):
    """One MIG instance: a profile of the device at its first memory slice."""

    profile_id = serializers.IntegerField(min_value=0, max_value=255)
    start = serializers.IntegerField(min_value=0, max_value=15)


class LayoutIn(Body):
    """The instances that the GPU is to be cut into; none: whole again."""

    placements = PlacementIn(many=True)

    def validate_placements(self, value: list[dict[str, int]]) -> list[dict[str, int]]:
        if len(value) > MAX_INSTANCES:
            raise serializers.ValidationError(f"A GPU has at most {MAX_INSTANCES} instances.")
        return value


class DeviceReasonIn(Body):
    """Why, for whoever reads it later."""

    message = serializers.CharField(max_length=300, required=False, allow_blank=True, default="")


class WallOut(serializers.Serializer[Any]):
    """A kind of isolation around engines: whether the host offers it, and how or why not."""

    name = serializers.CharField()
    used = serializers.BooleanField()
    detail = serializers.CharField()


class NodeOut(serializers.ModelSerializer[Node]):
    """A node as lists show it; bytes."""

    device_count = serializers.IntegerField(read_only=True)
    replica_count = serializers.IntegerField(read_only=True)
    device_bytes = serializers.IntegerField(read_only=True, allow_null=True)
    held_device_bytes = serializers.IntegerField(read_only=True, allow_null=True)
    walls = WallOut(many=True, read_only=True)
    facts = serializers.DictField(read_only=True)
    rank_address = serializers.CharField(
        read_only=True,
        help_text="Where ranks on other nodes reach those here; empty: it takes part in no replica over several nodes.",
    )
    silent = serializers.SerializerMethodField()

    class Meta:
        model = Node
        fields = [
            "id", "name", "machine_id", "state", "reason", "message", "state_changed_at", "created_at", "last_seen_at",
            "lease_expires_at", "agent_version", "data_address", "applied_generation", "hostname", "os", "cpus",
            "memory_bytes", "memory_available_bytes", "disk_free_bytes", "cpu_used", "held_host_bytes",
            "held_millicpus", "fault_domain", "walls", "facts", "device_count", "replica_count", "device_bytes",
            "held_device_bytes", "silent", "rank_address",
        ]  # fmt: skip

    @extend_schema_field(
        serializers.BooleanField(help_text="Its lease has run out: nothing is placed there until it reports.")
    )
    def get_silent(self, row: Node) -> bool:
        return selectors.is_silent(row)


class HealthEventOut(serializers.ModelSerializer[HealthEvent]):
    """Something a node or device said about its health."""

    device_uuid = serializers.CharField(source="device.uuid", default=None, allow_null=True)

    class Meta:
        model = HealthEvent
        fields = ["id", "at", "code", "message", "device_uuid"]


class HealthLogOut(HealthEventOut):
    """The same in the list of all nodes: with its node, and what the fault policy decided."""

    node = serializers.CharField(source="node.name")
    node_id = serializers.UUIDField()
    decision = serializers.SerializerMethodField()
    times = serializers.SerializerMethodField()

    class Meta(HealthEventOut.Meta):
        fields = [*HealthEventOut.Meta.fields, "node", "node_id", "decision", "times"]

    @extend_schema_field(serializers.CharField(help_text="ignore, watch, suspect, move, reset, retire; empty: none."))
    def get_decision(self, row: HealthEvent) -> str:
        return str(row.data.get("action", ""))

    @extend_schema_field(serializers.IntegerField(help_text="How often the same was said within a minute."))
    def get_times(self, row: HealthEvent) -> int:
        return int(row.data.get("times", 1))


class DeviceDetail(DeviceOut):
    """A device with what happened to it lately."""

    health_events = serializers.SerializerMethodField()

    class Meta(DeviceOut.Meta):
        fields = [*DeviceOut.Meta.fields, "health_events"]

    @extend_schema_field(HealthEventOut(many=True))
    def get_health_events(self, row: Device) -> Any:
        return HealthEventOut(self.context["health_events"], many=True).data


class NodeDetail(NodeOut):
    """A node with its devices and what happened to it lately."""

    devices = serializers.SerializerMethodField()
    health_events = serializers.SerializerMethodField()

    class Meta(NodeOut.Meta):
        fields = [*NodeOut.Meta.fields, "devices", "health_events"]

    @extend_schema_field(DeviceOut(many=True))
    def get_devices(self, row: Node) -> Any:
        return DeviceOut(self.context["devices"], many=True, context=self.context).data

    @extend_schema_field(HealthEventOut(many=True))
    def get_health_events(self, row: Node) -> Any:
        return HealthEventOut(self.context["health_events"], many=True).data


class DrainIn(Body):
    """``accept_gap``: replicas may stop before their successors are ready."""

    accept_gap = serializers.BooleanField(default=False)


class FaultDomainIn(Body):
    """``name`` of what fails together: a rack, a power feed. Empty: the node by itself."""

    name = serializers.CharField(max_length=80, allow_blank=True)


class JoinTokenIn(Body):
    """What is to join. ``name`` overrides the machine's own."""

    kind = serializers.ChoiceField(choices=MachineKind.choices, default=MachineKind.NODE.value)
    name = serializers.CharField(max_length=120, required=False, allow_blank=True, default="")


class JoinTokenOut(serializers.ModelSerializer[JoinToken]):
    """The token is shown here and never again."""

    token = serializers.CharField()
    command = serializers.CharField(help_text="What to run on the machine.")

    class Meta:
        model = JoinToken
        fields = ["id", "kind", "name", "expires_at", "token", "command"]


class EjectionOut(serializers.Serializer[Any]):
    """A replica that a gateway sends nothing to for now."""

    replica_id = serializers.CharField()
    generation = serializers.IntegerField()
    reason = serializers.CharField()
    message = serializers.CharField()
    since = serializers.FloatField(help_text="Unix seconds.")


class AdaptiveOut(serializers.Serializer[Any]):
    """How many requests a gateway keeps in flight to a deployment, and how many wait at it."""

    deployment_id = serializers.CharField()
    limit = serializers.IntegerField()
    in_flight = serializers.IntegerField()
    queued = serializers.IntegerField()


class GatewayOut(serializers.ModelSerializer[Gateway]):
    """A gateway; ``live`` while it reports, ``current`` when it serves from the newest route table."""

    live = serializers.SerializerMethodField()
    current = serializers.SerializerMethodField()
    ejected = EjectionOut(many=True, read_only=True)
    adaptive = AdaptiveOut(many=True, read_only=True)

    class Meta:
        model = Gateway
        fields = [
            "id", "name", "url", "version", "live", "current", "applied_generation", "table_age_seconds", "in_flight",
            "journal_pending", "limits_shared", "ejected", "adaptive", "created_at", "last_seen_at",
        ]  # fmt: skip

    def get_live(self, row: Gateway) -> bool:
        return row.lease_expires_at is not None and row.lease_expires_at > clock.now()

    def get_current(self, row: Gateway) -> bool:
        return bool(row.applied_generation >= self.context["newest"])
