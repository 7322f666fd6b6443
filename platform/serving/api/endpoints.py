"""REST of endpoints and grants."""

from typing import Any, ClassVar

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from kernel import scope
from serving import access, selectors, services
from serving.api.serializers import CallableEndpointOut, EndpointIn, EndpointOut, EndpointPatch, GrantIn, GrantOut
from serving.models import Endpoint, Grant
from tenants.api.base import TenantView
from tenants.models import Tenant
from tenants.roles import Permission


class EndpointsView(TenantView):
    """Names that clients call."""

    permissions: ClassVar = {"GET": Permission.VIEW, "POST": Permission.DEPLOY}
    serializer_class = EndpointOut
    queryset = Endpoint._base_manager.none()

    @extend_schema(operation_id="endpoints_list", summary="List endpoints", responses=EndpointOut(many=True))
    def get(self, request: Request, tenant: str) -> Response:
        page = self.paginate_queryset(selectors.endpoints_of(self.tenant))
        return self.get_paginated_response(EndpointOut(page, many=True).data)

    @extend_schema(
        operation_id="endpoints_create", summary="Make an endpoint", request=EndpointIn, responses={201: EndpointOut}
    )
    def post(self, request: Request, tenant: str) -> Response:
        def work() -> Response:
            body = EndpointIn(data=request.data)
            body.is_valid(raise_exception=True)
            made = services.create_endpoint(actor=self.actor, tenant=self.tenant, **body.validated_data)
            return Response(_body(self.tenant, made), status=201)

        return self.once(request, work)


class EndpointView(TenantView):
    """One endpoint, by name or id."""

    permissions: ClassVar = {"GET": Permission.VIEW, "PATCH": Permission.DEPLOY, "DELETE": Permission.DEPLOY}
    serializer_class = EndpointOut
    pagination_class = None

    @extend_schema(operation_id="endpoints_retrieve", summary="Show an endpoint", responses=EndpointOut)
    def get(self, request: Request, tenant: str, endpoint: str) -> Response:
        return Response(_body(self.tenant, access.access_endpoint(self.actor, self.tenant, endpoint)))

    @extend_schema(
        operation_id="endpoints_update",
        summary="Set what an endpoint promises, and what keeps callers on one variant",
        request=EndpointPatch,
        responses=EndpointOut,
    )
    def patch(self, request: Request, tenant: str, endpoint: str) -> Response:
        found = access.access_endpoint(self.actor, self.tenant, endpoint, Permission.DEPLOY)
        body = EndpointPatch(data=request.data)
        body.is_valid(raise_exception=True)
        services.change_endpoint(actor=self.actor, tenant=self.tenant, endpoint=found, **body.validated_data)
        return Response(_body(self.tenant, found))

    @extend_schema(operation_id="endpoints_delete", summary="Delete an endpoint", responses={204: None})
    def delete(self, request: Request, tenant: str, endpoint: str) -> Response:
        found = access.access_endpoint(self.actor, self.tenant, endpoint, Permission.DEPLOY)
        services.delete_endpoint(actor=self.actor, tenant=self.tenant, endpoint=found)
        return Response(status=204)


class GrantsView(TenantView):
    """Who may call an endpoint beside its owner."""

    permissions: ClassVar = {"GET": Permission.VIEW, "POST": Permission.GRANT}
    serializer_class = GrantOut
    queryset = Grant._base_manager.none()

    @extend_schema(operation_id="grants_list", summary="List grants", responses=GrantOut(many=True))
    def get(self, request: Request, tenant: str, endpoint: str) -> Response:
        found = access.access_endpoint(self.actor, self.tenant, endpoint)
        page = self.paginate_queryset(selectors.grants_of(found))
        return self.get_paginated_response(GrantOut(page, many=True).data)

    @extend_schema(
        operation_id="grants_create",
        summary="Let a tenant call an endpoint",
        request=GrantIn,
        responses={201: GrantOut},
    )
    def post(self, request: Request, tenant: str, endpoint: str) -> Response:
        def work() -> Response:
            found = access.access_endpoint(self.actor, self.tenant, endpoint, Permission.GRANT)
            body = GrantIn(data=request.data)
            body.is_valid(raise_exception=True)
            made = services.grant(
                actor=self.actor, tenant=self.tenant, endpoint=found, to=body.validated_data["tenant"]
            )
            return Response(GrantOut(made).data, status=201)

        return self.once(request, work)


class GrantView(TenantView):
    """One grant."""

    permissions: ClassVar = {"DELETE": Permission.GRANT}
    serializer_class = GrantOut
    pagination_class = None

    @extend_schema(operation_id="grants_delete", summary="Take a grant back", responses={204: None})
    def delete(self, request: Request, tenant: str, endpoint: str, grant_id: Any) -> Response:
        found = access.access_endpoint(self.actor, self.tenant, endpoint, Permission.GRANT)
        grant = access.access_grant(self.actor, self.tenant, found, grant_id, Permission.GRANT)
        services.revoke_grant(actor=self.actor, tenant=self.tenant, grant=grant)
        return Response(status=204)


class CallableEndpointsView(TenantView):
    """What this tenant may call: its own endpoints and those granted to it."""

    permissions: ClassVar = {"GET": Permission.VIEW}
    serializer_class = CallableEndpointOut
    pagination_class = None

    @extend_schema(
        operation_id="callable_endpoints_list",
        summary="List what the tenant may call",
        responses=CallableEndpointOut(many=True),
    )
    def get(self, request: Request, tenant: str) -> Response:
        return Response(CallableEndpointOut(selectors.callable_endpoints(self.tenant), many=True).data)


def _body(tenant: Tenant, endpoint: Endpoint) -> Any:
    with scope.tenant(tenant.id):
        return EndpointOut(selectors.endpoints_of(tenant).get(id=endpoint.id)).data
