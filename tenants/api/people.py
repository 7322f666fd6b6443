"""REST of accounts, for platform admins.

Password links, lost second factors and signing people out are acts of the console alone: they ask for a fresh proof of
who is there, which a token cannot give.
"""

import uuid

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from kernel import errors
from kernel.texts import sought
from tenants import access, people, selectors
from tenants.api.base import PlatformView
from tenants.models import User


class PersonOut(serializers.ModelSerializer[User]):
    tenants = serializers.IntegerField(read_only=True, help_text="Memberships.")

    class Meta:
        model = User
        fields = ["id", "email", "name", "is_active", "is_staff", "tenants", "last_login", "date_joined"]
        read_only_fields = fields


class People(PlatformView):
    """Every account."""

    who = "platform_admin"
    serializer_class = PersonOut
    queryset = User.objects.none()

    @extend_schema(
        parameters=[OpenApiParameter("q", str, description="A part of the name or the address.")],
        responses=PersonOut(many=True),
        operation_id="people_list",
    )
    def get(self, request: Request) -> Response:
        access.require_platform_admin(self.actor)
        rows = selectors.people(sought(request.query_params.get("q", "")))
        return self.get_paginated_response(PersonOut(self.paginate_queryset(rows), many=True).data)


class _Person(PlatformView):
    who = "platform_admin"
    serializer_class = PersonOut

    def found(self, user_id: uuid.UUID) -> User:
        """The account; nobody else than a platform admin learns whether there is one."""
        access.require_platform_admin(self.actor)
        if (user := selectors.people().filter(id=user_id).first()) is None:
            raise errors.NotFound("There is no such person here.", code="person_not_found")
        return user


class PersonDetail(_Person):
    """One account."""

    @extend_schema(responses=PersonOut, operation_id="people_get")
    def get(self, request: Request, user_id: uuid.UUID) -> Response:
        return Response(PersonOut(self.found(user_id)).data)


class PersonSwitchOff(_Person):
    """End the person's access: no sign-in, no session, no token; what they made stays."""

    @extend_schema(request=None, responses=PersonOut, operation_id="people_switch_off")
    def post(self, request: Request, user_id: uuid.UUID) -> Response:
        people.switch_off(actor=self.actor, user=self.found(user_id))
        return Response(PersonOut(self.found(user_id)).data)


class PersonSwitchOn(_Person):
    """Let the person sign in again."""

    @extend_schema(request=None, responses=PersonOut, operation_id="people_switch_on")
    def post(self, request: Request, user_id: uuid.UUID) -> Response:
        people.switch_on(actor=self.actor, user=self.found(user_id))
        return Response(PersonOut(self.found(user_id)).data)
