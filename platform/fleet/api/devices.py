"""REST of devices, for platform admins: all of them, one, and what a person decides about one."""

from collections.abc import Callable
from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from fleet import access, care, cutting, selectors
from fleet.api.serializers import DeviceDetail, DeviceOut, DeviceReasonIn, HealthLogOut, LayoutIn
from fleet.models import Device, HealthEvent
from kernel.texts import sought
from tenants.api.base import PlatformView


class DevicesView(PlatformView):
    """Every device with its partitions and who holds them."""

    who = "platform_admin"
    serializer_class = DeviceOut
    queryset = Device.objects.none()

    @extend_schema(operation_id="devices_list", summary="List devices", responses=DeviceOut(many=True))
    def get(self, request: Request) -> Response:
        page = self.paginate_queryset(selectors.devices()) or []
        return self.get_paginated_response(
            DeviceOut(page, many=True, context={"holders": selectors.holders_of(page)}).data
        )


class HealthLogView(PlatformView):
    """What all nodes and devices said about their health."""

    who = "platform_admin"
    serializer_class = HealthLogOut
    queryset = HealthEvent.objects.none()

    @extend_schema(
        operation_id="health_events_list",
        summary="List health events",
        parameters=[OpenApiParameter("q", str, description="A part of a code, a node's name or a device's UUID.")],
        responses=HealthLogOut(many=True),
    )
    def get(self, request: Request) -> Response:
        page = self.paginate_queryset(selectors.health_log(sought(request.query_params.get("q", "")))) or []
        return self.get_paginated_response(HealthLogOut(page, many=True).data)


class DeviceView(PlatformView):
    """One device with its partitions and what happened to it."""

    who = "platform_admin"
    serializer_class = DeviceDetail
    pagination_class = None

    @extend_schema(operation_id="devices_retrieve", summary="Show a device", responses=DeviceDetail)
    def get(self, request: Request, device_id: Any) -> Response:
        access.access_device(self.actor, device_id)
        return Response(detail(device_id))


def detail(device_id: Any) -> Any:
    """The body of one device."""
    device = selectors.devices().get(id=device_id)
    context = {
        "holders": selectors.holders_of([device]),
        "health_events": selectors.health_events_of(device),
    }
    return DeviceDetail(device, context=context).data


class DeviceVerbView(PlatformView):
    """A decision about a device."""

    who = "platform_admin"
    serializer_class = DeviceReasonIn
    pagination_class = None

    def carry_out(self, request: Request, verb: Callable[..., Device], device_id: Any) -> Response:
        """Do ``verb`` once and show the device."""
        body = DeviceReasonIn(data=request.data)
        body.is_valid(raise_exception=True)

        def work() -> Response:
            device = access.access_device(self.actor, device_id)
            verb(actor=self.actor, device=device, message=body.validated_data["message"])
            return Response(detail(device_id))

        return self.once(request, work)


class QuarantineView(DeviceVerbView):
    """Move everything off a device and place nothing there."""

    @extend_schema(
        operation_id="devices_quarantine",
        summary="Quarantine a device",
        request=DeviceReasonIn,
        responses=DeviceDetail,
    )
    def post(self, request: Request, device_id: Any) -> Response:
        return self.carry_out(request, care.quarantine, device_id)


class ReturnView(DeviceVerbView):
    """Take a device back into service."""

    @extend_schema(
        operation_id="devices_return",
        summary="Return a device to service",
        request=DeviceReasonIn,
        responses=DeviceDetail,
    )
    def post(self, request: Request, device_id: Any) -> Response:
        return self.carry_out(request, care.return_to_service, device_id)


class RetireView(DeviceVerbView):
    """Take a device out of service for good."""

    @extend_schema(
        operation_id="devices_retire", summary="Retire a device", request=DeviceReasonIn, responses=DeviceDetail
    )
    def post(self, request: Request, device_id: Any) -> Response:
        return self.carry_out(request, care.retire, device_id)


class LayoutView(PlatformView):
    """How a GPU is cut by MIG."""

    who = "platform_admin"
    serializer_class = LayoutIn
    pagination_class = None

    @extend_schema(operation_id="devices_layout", summary="Cut a GPU by MIG", request=LayoutIn, responses=DeviceDetail)
    def post(self, request: Request, device_id: Any) -> Response:
        body = LayoutIn(data=request.data)
        body.is_valid(raise_exception=True)
        wanted = [(each["profile_id"], each["start"]) for each in body.validated_data["placements"]]

        def work() -> Response:
            cutting.cut(actor=self.actor, device=access.access_device(self.actor, device_id), placements=wanted)
            return Response(detail(device_id))

        return self.once(request, work)


class LayoutRollbackView(PlatformView):
    """The layout that was wanted before."""

    who = "platform_admin"
    serializer_class = LayoutIn
    pagination_class = None

    @extend_schema(
        operation_id="devices_layout_rollback", summary="Roll a layout back", request=None, responses=DeviceDetail
    )
    def post(self, request: Request, device_id: Any) -> Response:
        def work() -> Response:
            cutting.roll_back(actor=self.actor, device=access.access_device(self.actor, device_id))
            return Response(detail(device_id))

        return self.once(request, work)
