"""REST of nodes and devices, for platform admins."""

from collections.abc import Callable
from typing import Any

from django.conf import settings
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from fleet import access, selectors, services
from fleet.api.serializers import DrainIn, FaultDomainIn, JoinTokenIn, JoinTokenOut, NodeDetail, NodeOut
from fleet.models import MachineKind, Node
from tenants.api.base import PlatformView

_MODULES = {
    MachineKind.NODE: ("runtime.agent", "MILLPOND_AGENT"),
    MachineKind.GATEWAY: ("runtime.gateway", "MILLPOND_GATEWAY"),
}


def join_command(kind: MachineKind) -> str:
    """The line that joins a machine. The token goes in by file: arguments and variables can be read by others."""
    module, prefix = _MODULES[kind]
    name = kind.value
    return (
        f"umask 077 && cat > join-token && MILLPOND_CONTROL_URL={settings.PUBLIC_URL} {prefix}_DIR=$PWD/{name} "
        f"{prefix}_JOIN_TOKEN_FILE=$PWD/join-token python -m {module}"
    )


class NodesView(PlatformView):
    """The fleet's machines."""

    who = "platform_admin"
    serializer_class = NodeOut
    queryset = Node.objects.none()

    @extend_schema(operation_id="nodes_list", summary="List nodes", responses=NodeOut(many=True))
    def get(self, request: Request) -> Response:
        page = self.paginate_queryset(selectors.nodes())
        return self.get_paginated_response(NodeOut(page, many=True).data)


class NodeView(PlatformView):
    """One machine with its devices."""

    who = "platform_admin"
    serializer_class = NodeDetail
    pagination_class = None

    @extend_schema(operation_id="nodes_retrieve", summary="Show a node", responses=NodeDetail)
    def get(self, request: Request, node_id: Any) -> Response:
        access.access_node(self.actor, node_id)
        return Response(_detail(node_id))


def _detail(node_id: Any) -> Any:
    node = selectors.node_with_counts(node_id)
    devices = list(selectors.devices_of(node))
    context = {
        "devices": devices,
        "holders": selectors.holders_of(devices),
        "health_events": selectors.health_events(node),
    }
    return NodeDetail(node, context=context).data


class NodeVerbView(PlatformView):
    """A verb on a node."""

    who = "platform_admin"
    serializer_class = NodeDetail
    pagination_class = None

    def carry_out(self, request: Request, verb: Callable[..., Node], node_id: Any, **facts: Any) -> Response:
        """Do ``verb`` once and show the node."""

        def work() -> Response:
            verb(actor=self.actor, node=access.access_node(self.actor, node_id), **facts)
            return Response(_detail(node_id))

        return self.once(request, work)


class CordonView(NodeVerbView):
    """Place nothing new on a node."""

    @extend_schema(operation_id="nodes_cordon", summary="Cordon a node", request=None, responses=NodeDetail)
    def post(self, request: Request, node_id: Any) -> Response:
        return self.carry_out(request, services.cordon, node_id)


class UncordonView(NodeVerbView):
    """Take a node back into service."""

    @extend_schema(operation_id="nodes_uncordon", summary="Uncordon a node", request=None, responses=NodeDetail)
    def post(self, request: Request, node_id: Any) -> Response:
        return self.carry_out(request, services.uncordon, node_id)


class DrainView(NodeVerbView):
    """Move everything off a node."""

    serializer_class = DrainIn  # type: ignore[assignment]

    @extend_schema(operation_id="nodes_drain", summary="Drain a node", request=DrainIn, responses=NodeDetail)
    def post(self, request: Request, node_id: Any) -> Response:
        body = DrainIn(data=request.data)
        body.is_valid(raise_exception=True)
        return self.carry_out(request, services.drain, node_id, **body.validated_data)


class FaultDomainView(NodeVerbView):
    """What a node fails together with."""

    serializer_class = FaultDomainIn  # type: ignore[assignment]

    @extend_schema(
        operation_id="nodes_fault_domain",
        summary="Set a node's fault domain",
        request=FaultDomainIn,
        responses=NodeDetail,
    )
    def post(self, request: Request, node_id: Any) -> Response:
        body = FaultDomainIn(data=request.data)
        body.is_valid(raise_exception=True)
        return self.carry_out(request, services.set_fault_domain, node_id, **body.validated_data)


class RemoveView(NodeVerbView):
    """Take a node out of the fleet."""

    @extend_schema(operation_id="nodes_remove", summary="Remove a node", request=None, responses=NodeDetail)
    def post(self, request: Request, node_id: Any) -> Response:
        return self.carry_out(request, services.remove, node_id)


class JoinTokensView(PlatformView):
    """One-time tokens with which nodes and gateways join."""

    who = "platform_admin"
    serializer_class = JoinTokenIn
    pagination_class = None
    idempotent = False

    @extend_schema(
        operation_id="nodes_tokens_create",
        summary="Make a join token",
        request=JoinTokenIn,
        responses={201: JoinTokenOut},
    )
    def post(self, request: Request) -> Response:
        body = JoinTokenIn(data=request.data)
        body.is_valid(raise_exception=True)
        kind = MachineKind(body.validated_data["kind"])
        token, text = services.create_join_token(actor=self.actor, kind=kind, name=body.validated_data["name"])
        token.token, token.command = text, join_command(kind)  # type: ignore[attr-defined]
        return Response(JoinTokenOut(token).data, status=201)
