"""REST of accounts, for platform admins.

Password links, lost second factors and signing people out are acts of the console alone. Making and unmaking platform
admins takes the caller's password (and code) in the call itself: a token that was found somewhere is not enough for it.
"""

import uuid

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from kernel import errors
from kernel.actors import ActorKind
from kernel.api.bodies import Body
from kernel.texts import sought
from tenants import access, identity, people, selectors, sign_in
from tenants.api.base import PlatformView
from tenants.errors import AuthenticationTooOld
from tenants.models import User


class PersonOut(serializers.ModelSerializer[User]):
    tenants = serializers.IntegerField(read_only=True, help_text="Memberships.")

    class Meta:
        model = User
        fields = ["id", "email", "name", "is_active", "is_staff", "tenants", "last_login", "date_joined"]
        read_only_fields = fields


class ProofIn(Body):
    """Who is there, of the caller."""

    password = serializers.CharField(max_length=256, trim_whitespace=False, help_text="The caller's own.")
    code = serializers.CharField(
        max_length=64, required=False, default="", allow_blank=True,
        help_text="Of the authenticator app, or a recovery code, where a second factor is set up.",
    )  # fmt: skip


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


class _Rights(_Person):
    def prove(self, request: Request) -> None:
        """Raise unless the call carries the password (and code) of the person who makes it."""
        given = ProofIn(data=request.data)
        given.is_valid(raise_exception=True)
        if self.actor.kind is not ActorKind.USER:
            raise errors.Forbidden("Only a person can do this: sign in as a platform admin.")
        if not User.objects.get(id=self.actor.id).has_usable_password():
            raise AuthenticationTooOld(
                "Your account has no password to prove who you are with: do this in the console."
            )
        sign_in.check_password(
            self.actor.label, given.validated_data["password"], given.validated_data["code"],
            identity.address_of(request.META),
        )  # fmt: skip


class PersonMakeAdmin(_Rights):
    """Make the person a platform admin."""

    @extend_schema(request=ProofIn, responses=PersonOut, operation_id="people_make_admin")
    def post(self, request: Request, user_id: uuid.UUID) -> Response:
        user = self.found(user_id)
        self.prove(request)
        people.make_admin(actor=self.actor, user=user)
        return Response(PersonOut(self.found(user_id)).data)


class PersonUnmakeAdmin(_Rights):
    """Take the rights of a platform admin from the person; the last one keeps them."""

    @extend_schema(request=ProofIn, responses=PersonOut, operation_id="people_unmake_admin")
    def post(self, request: Request, user_id: uuid.UUID) -> Response:
        user = self.found(user_id)
        self.prove(request)
        people.unmake_admin(actor=self.actor, user=user)
        return Response(PersonOut(self.found(user_id)).data)
