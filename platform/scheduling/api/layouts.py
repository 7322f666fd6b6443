"""REST of proposed MIG layouts, for platform admins. Applying one is ``POST /devices/{id}/layout``."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from fleet.layouts import Layout, Placed, Want
from fleet.models import DeviceKind
from kernel.api.bodies import Body
from scheduling import cuts
from scheduling.cuts import Cut, Plan, Waiting
from tenants.api.base import PlatformView


class InstanceOut(serializers.Serializer[Any]):
    """One MIG instance of a layout; bytes."""

    profile_id = serializers.IntegerField(source="profile.id")
    profile = serializers.CharField(source="profile.name")
    start = serializers.IntegerField()
    slices = serializers.IntegerField(source="profile.slices")
    memory_bytes = serializers.IntegerField(source="profile.memory_bytes")


class WantOut(serializers.Serializer[Any]):
    """What an instance is wanted for; the replica is null in a demand that was named. ``profile`` is what it gets."""

    replica_id = serializers.UUIDField(allow_null=True)
    tenant = serializers.CharField()
    endpoint = serializers.CharField()
    memory_bytes = serializers.IntegerField()
    profile = serializers.CharField()


class CutOut(serializers.Serializer[Any]):
    """A proposal for one GPU. ``must_move`` replicas have to leave it before it can be cut."""

    device_id = serializers.UUIDField()
    device_uuid = serializers.CharField()
    node = serializers.CharField()
    product = serializers.CharField()
    now = InstanceOut(many=True)
    proposed = InstanceOut(many=True)
    unused = InstanceOut(many=True, help_text="Instances that nothing of the demand takes.")
    serves = WantOut(many=True)
    must_move = serializers.IntegerField()
    applicable = serializers.BooleanField()


class PlanOut(serializers.Serializer[Any]):
    """Proposals, what can be applied at once first; ``unserved`` is what none of them serves."""

    proposals = CutOut(many=True)
    unserved = WantOut(many=True)


class WantIn(Body):
    """``count`` instances with at least so much memory, or of one profile."""

    memory_bytes = serializers.IntegerField(min_value=0, default=0)
    profile = serializers.CharField(max_length=24, required=False, default="", allow_blank=True)
    compute_slices = serializers.IntegerField(min_value=1, max_value=7, default=1)
    count = serializers.IntegerField(min_value=1, max_value=cuts.MAX_WANTS, default=1)


class DemandIn(Body):
    """What instances are wanted, the most pressing first."""

    demand = WantIn(many=True, allow_empty=False)
    kind = serializers.ChoiceField(
        choices=[DeviceKind.CUDA.value, DeviceKind.SIMULATED.value], default=DeviceKind.CUDA.value
    )


class LayoutProposalsView(PlatformView):
    """How GPUs could be cut for what waits, or for a demand that is named."""

    who = "platform_admin"
    serializer_class = PlanOut
    pagination_class = None

    @extend_schema(operation_id="layouts_proposals", summary="Propose MIG layouts for what waits", responses=PlanOut)
    def get(self, request: Request) -> Response:
        return Response(body_of(cuts.for_waiting(actor=self.actor)))

    @extend_schema(
        operation_id="layouts_propose",
        summary="Propose MIG layouts for a demand",
        request=DemandIn,
        responses=PlanOut,
    )
    def post(self, request: Request) -> Response:
        given = DemandIn(data=request.data)
        given.is_valid(raise_exception=True)
        wanted = [
            Want(row["memory_bytes"], row["compute_slices"], row["profile"])
            for row in given.validated_data["demand"]
            for _ in range(row["count"])
        ]
        found = cuts.for_demand(actor=self.actor, wanted=wanted, kind=given.validated_data["kind"])
        return Response(body_of(found))


def body_of(plan: Plan) -> Any:
    """The body of a plan."""
    found = {"proposals": [_cut(each) for each in plan.cuts], "unserved": [_want(each) for each in plan.unserved]}
    return PlanOut(found).data


def _cut(each: Cut) -> dict[str, Any]:
    return {
        "device_id": each.device.id,
        "device_uuid": each.device.uuid,
        "node": each.device.node.name,
        "product": each.device.product,
        "now": _sorted(each.now),
        "proposed": _sorted(each.proposal.layout),
        "unused": _sorted(each.proposal.unused),
        "serves": [_want(waiting, placed) for waiting, placed in each.served],
        "must_move": each.proposal.must_move,
        "applicable": each.applicable,
    }


def _sorted(layout: Layout) -> list[Placed]:
    return sorted(layout, key=lambda placed: placed.start)


def _want(each: Waiting, placed: Placed | None = None) -> dict[str, Any]:
    return {
        "replica_id": each.replica_id,
        "tenant": each.tenant,
        "endpoint": each.endpoint,
        "memory_bytes": each.want.memory_bytes,
        "profile": placed.profile.name if placed is not None else each.want.profile,
    }
