"""REST of a tenant's isolation policy."""

from typing import Any, ClassVar

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from fleet import policy
from kernel.api.bodies import Body
from kernel.isolation import Requirement
from tenants.api.base import TenantView
from tenants.roles import Permission


class IsolationIn(Body):
    """The least isolation that every replica of the tenant must have."""

    isolation = serializers.ChoiceField(choices=Requirement.choices)


class IsolationOut(serializers.Serializer[Any]):
    """What the tenant requires, and who said so; ``set_at`` is null where nobody has."""

    isolation = serializers.ChoiceField(choices=Requirement.choices, source="least")
    set_at = serializers.DateTimeField(allow_null=True)
    set_by = serializers.CharField()


class IsolationView(TenantView):
    """The isolation that a tenant requires; its owners set it."""

    permissions: ClassVar = {"GET": Permission.VIEW, "PUT": Permission.MANAGE_TENANT}
    serializer_class = IsolationOut
    pagination_class = None

    @extend_schema(operation_id="isolation_retrieve", summary="Show the required isolation", responses=IsolationOut)
    def get(self, request: Request, tenant: str) -> Response:
        return Response(IsolationOut(policy.policy_of(self.tenant)).data)

    @extend_schema(
        operation_id="isolation_set", summary="Require an isolation", request=IsolationIn, responses=IsolationOut
    )
    def put(self, request: Request, tenant: str) -> Response:
        body = IsolationIn(data=request.data)
        body.is_valid(raise_exception=True)
        row = policy.set_policy(actor=self.actor, tenant=self.tenant, least=body.validated_data["isolation"])
        return Response(IsolationOut(row).data)
