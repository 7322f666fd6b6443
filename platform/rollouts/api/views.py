"""REST of rollouts."""

from collections.abc import Callable
from typing import Any, ClassVar

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from kernel.api.paging import CursorPages
from rollouts import access, planning, selectors, services
from rollouts.api.serializers import ComparedOut, LogOut, RolloutIn, RolloutOut, RolloutPreviewOut, WishIn
from rollouts.models import Rollout, RolloutLog
from serving.access import access_endpoint
from tenants.api.base import TenantView
from tenants.roles import Permission


class RolloutsView(TenantView):
    """Rollouts of the tenant."""

    permissions: ClassVar = {"GET": Permission.VIEW}
    serializer_class = RolloutOut
    queryset = Rollout._base_manager.none()

    @extend_schema(operation_id="rollouts_list", summary="List rollouts", responses=RolloutOut(many=True))
    def get(self, request: Request, tenant: str) -> Response:
        page = self.paginate_queryset(selectors.rollouts_of(self.tenant))
        return self.get_paginated_response(RolloutOut(page, many=True).data)


class EndpointRolloutsView(TenantView):
    """Rollouts of one endpoint."""

    permissions: ClassVar = {"GET": Permission.VIEW, "POST": Permission.DEPLOY}
    serializer_class = RolloutOut
    queryset = Rollout._base_manager.none()

    @extend_schema(
        operation_id="endpoint_rollouts_list", summary="List an endpoint's rollouts", responses=RolloutOut(many=True)
    )
    def get(self, request: Request, tenant: str, endpoint: str) -> Response:
        found = access_endpoint(self.actor, self.tenant, endpoint)
        page = self.paginate_queryset(selectors.rollouts_of(self.tenant, found))
        return self.get_paginated_response(RolloutOut(page, many=True).data)

    @extend_schema(
        operation_id="endpoint_rollouts_create",
        summary="Roll a version out behind an endpoint",
        request=RolloutIn,
        responses={201: RolloutOut},
    )
    def post(self, request: Request, tenant: str, endpoint: str) -> Response:
        def work() -> Response:
            found = access_endpoint(self.actor, self.tenant, endpoint, Permission.DEPLOY)
            body = RolloutIn(data=request.data)
            body.is_valid(raise_exception=True)
            made = services.create_rollout(
                actor=self.actor,
                tenant=self.tenant,
                endpoint=found,
                wish=body.wish(),
                accept=body.validated_data["accept"],
                start=body.validated_data["start"],
            )
            return Response(RolloutOut(access.access_rollout(self.actor, self.tenant, made.id)).data, status=201)

        return self.once(request, work)


class RolloutPreviewView(TenantView):
    """The dry run of a rollout."""

    permissions: ClassVar = {"POST": Permission.VIEW}
    serializer_class = RolloutPreviewOut
    pagination_class = None

    @extend_schema(
        operation_id="endpoint_rollouts_preview",
        summary="Say what a rollout would do and cost",
        request=WishIn,
        responses=RolloutPreviewOut,
    )
    def post(self, request: Request, tenant: str, endpoint: str) -> Response:
        found = access_endpoint(self.actor, self.tenant, endpoint)
        body = WishIn(data=request.data)
        body.is_valid(raise_exception=True)
        shown = planning.preview(actor=self.actor, tenant=self.tenant, endpoint=found, wish=body.wish())
        return Response(RolloutPreviewOut(shown).data)


class OnRollout(TenantView):
    """A route about one rollout."""

    serializer_class: type = RolloutOut
    pagination_class = None

    def found(self, permission: Permission = Permission.VIEW) -> Rollout:
        """The rollout of the path."""
        return access.access_rollout(self.actor, self.tenant, self.kwargs["rollout_id"], permission)

    def shown(self) -> Response:
        """The rollout as it is now."""
        return Response(RolloutOut(self.found()).data)


class RolloutView(OnRollout):
    """One rollout."""

    permissions: ClassVar = {"GET": Permission.VIEW}

    @extend_schema(operation_id="rollouts_retrieve", summary="Show a rollout", responses=RolloutOut)
    def get(self, request: Request, tenant: str, rollout_id: Any) -> Response:
        return self.shown()


class RolloutLogView(OnRollout):
    """What happened in a rollout: shares, verdicts, states."""

    permissions: ClassVar = {"GET": Permission.VIEW}
    serializer_class = LogOut
    queryset = RolloutLog._base_manager.none()
    pagination_class = CursorPages  # type: ignore[assignment]

    @extend_schema(operation_id="rollouts_log", summary="List a rollout's log", responses=LogOut(many=True))
    def get(self, request: Request, tenant: str, rollout_id: Any) -> Response:
        page = self.paginate_queryset(selectors.log_of(self.found()))
        return self.get_paginated_response(LogOut(page, many=True).data)


class RolloutComparedView(OnRollout):
    """Both sides of the current step."""

    permissions: ClassVar = {"GET": Permission.VIEW}
    serializer_class = ComparedOut

    @extend_schema(operation_id="rollouts_compared", summary="Compare both sides of the step", responses=ComparedOut)
    def get(self, request: Request, tenant: str, rollout_id: Any) -> Response:
        return Response(ComparedOut({"measures": selectors.compared(self.found())}).data)


class Verb(OnRollout):
    """A verb of people on one rollout."""

    permissions: ClassVar = {"POST": Permission.DEPLOY}
    verb: ClassVar[Callable[..., Rollout]]

    def perform(self, request: Request) -> Response:
        """Do it, once."""

        def work() -> Response:
            type(self).verb(actor=self.actor, tenant=self.tenant, rollout=self.found(Permission.DEPLOY))
            return self.shown()

        return self.once(request, work)


class StartRolloutView(Verb):
    """Begin with the first step."""

    verb = services.start

    @extend_schema(operation_id="rollouts_start", summary="Start a rollout", request=None, responses=RolloutOut)
    def post(self, request: Request, tenant: str, rollout_id: Any) -> Response:
        return self.perform(request)


class PauseRolloutView(Verb):
    """Stop moving on."""

    verb = services.pause

    @extend_schema(operation_id="rollouts_pause", summary="Pause a rollout", request=None, responses=RolloutOut)
    def post(self, request: Request, tenant: str, rollout_id: Any) -> Response:
        return self.perform(request)


class ResumeRolloutView(Verb):
    """Go on with the step."""

    verb = services.resume

    @extend_schema(operation_id="rollouts_resume", summary="Resume a rollout", request=None, responses=RolloutOut)
    def post(self, request: Request, tenant: str, rollout_id: Any) -> Response:
        return self.perform(request)


class PromoteRolloutView(Verb):
    """Skip the judge."""

    verb = services.promote

    @extend_schema(operation_id="rollouts_promote", summary="Promote the candidate", request=None, responses=RolloutOut)
    def post(self, request: Request, tenant: str, rollout_id: Any) -> Response:
        return self.perform(request)


class RollBackRolloutView(Verb):
    """Give the baseline everything."""

    verb = services.roll_back

    @extend_schema(operation_id="rollouts_roll_back", summary="Roll back", request=None, responses=RolloutOut)
    def post(self, request: Request, tenant: str, rollout_id: Any) -> Response:
        return self.perform(request)


class AbortRolloutView(Verb):
    """End without moving anything."""

    verb = services.abort

    @extend_schema(operation_id="rollouts_abort", summary="Abort a rollout", request=None, responses=RolloutOut)
    def post(self, request: Request, tenant: str, rollout_id: Any) -> Response:
        return self.perform(request)
