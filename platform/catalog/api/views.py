"""Models, versions and aliases over REST."""

from typing import Any, ClassVar

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import BaseSerializer

from catalog import access, selectors, services
from catalog.api import serializers
from catalog.models import Alias, Model, ModelVersion
from tenants.api.base import TenantView
from tenants.roles import Permission

_WRITE: dict[str, Permission] = {
    "POST": Permission.PUBLISH,
    "PUT": Permission.PUBLISH,
    "DELETE": Permission.PUBLISH,
}


class CatalogView(TenantView):
    """A route of the catalog; reading needs ``view``, everything else ``publish``."""

    permissions: ClassVar[dict[str, Permission]] = _WRITE

    def get_serializer_context(self) -> dict[str, Any]:
        return {**super().get_serializer_context(), "tenant": getattr(self, "tenant", None)}

    def model(self) -> Model:
        """The model that the path names."""
        return access.access_model(self.actor, self.tenant, self.kwargs["model"])

    def version(self) -> ModelVersion:
        """The version that the path names."""
        return access.access_version(self.actor, self.tenant, self.model(), self.kwargs["number"])

    def out(self, kind: type[BaseSerializer[Any]], row: Any) -> Any:
        """``row`` as it goes out."""
        return kind(row, context=self.get_serializer_context()).data

    def version_out(self, version: ModelVersion) -> Any:
        """A version with its files as it goes out."""
        return self.out(serializers.VersionOut, selectors.version_detail(version))

    def parsed(self, kind: type[BaseSerializer[Any]], request: Request) -> dict[str, Any]:
        """The checked body."""
        serializer = kind(data=request.data)
        serializer.is_valid(raise_exception=True)
        return dict(serializer.validated_data)


class Models(CatalogView):
    serializer_class = serializers.ModelOut

    def get_queryset(self) -> "QuerySet[Model]":
        return selectors.models_of(self.tenant)

    @extend_schema(operation_id="models_list", responses=serializers.ModelOut(many=True))
    def get(self, request: Request, **_kwargs: Any) -> Response:
        """Models of the tenant, newest first."""
        page = self.paginate_queryset(self.get_queryset())
        return self.get_paginated_response(self.get_serializer(page, many=True).data)

    @extend_schema(operation_id="models_create", request=serializers.ModelIn, responses={201: serializers.ModelOut})
    def post(self, request: Request, **_kwargs: Any) -> Response:
        """Make a model: a named line of versions."""

        def work() -> Response:
            values = self.parsed(serializers.ModelIn, request)
            model = services.create_model(actor=self.actor, tenant=self.tenant, **values)
            return Response(
                self.out(serializers.ModelOut, self.get_queryset().get(id=model.id)), status.HTTP_201_CREATED
            )

        return self.once(request, work)


class OneModel(CatalogView):
    serializer_class = serializers.ModelOut

    @extend_schema(operation_id="models_retrieve", responses=serializers.ModelOut)
    def get(self, request: Request, **_kwargs: Any) -> Response:
        """One model, by name or id."""
        return Response(self.out(serializers.ModelOut, selectors.models_of(self.tenant).get(id=self.model().id)))

    @extend_schema(operation_id="models_delete", responses={204: None})
    def delete(self, request: Request, **_kwargs: Any) -> Response:
        """Delete a model with all its versions, unless something serves it."""
        services.delete_model(actor=self.actor, tenant=self.tenant, model=self.model())
        return Response(status=status.HTTP_204_NO_CONTENT)


class Versions(CatalogView):
    serializer_class = serializers.VersionOut

    def get_queryset(self) -> "QuerySet[ModelVersion]":
        return selectors.versions_of(self.tenant, self.model())

    @extend_schema(operation_id="versions_list", responses=serializers.VersionOut(many=True))
    def get(self, request: Request, **_kwargs: Any) -> Response:
        """Versions of a model, newest first."""
        page = self.paginate_queryset(self.get_queryset())
        return self.get_paginated_response(self.get_serializer(page, many=True).data)

    @extend_schema(
        operation_id="versions_create", request=serializers.VersionIn, responses={201: serializers.VersionOut}
    )
    def post(self, request: Request, **_kwargs: Any) -> Response:
        """Open a version for the declared files and charge their bytes to the storage quota.

        Then upload each file with tus 1.0.0 to ``/api/v1/tenants/{tenant}/uploads`` (``Upload-Metadata``: ``version``
        the version's id, ``path``, optionally ``sha256``), and finalize.
        """

        def work() -> Response:
            values = self.parsed(serializers.VersionIn, request)
            version = services.create_version(
                actor=self.actor, tenant=self.tenant, model=self.model(), description=values["description"],
                isolation=values["isolation"],
                files=[services.DeclaredFile(**file) for file in values["files"]],
            )  # fmt: skip
            return Response(self.version_out(version), status.HTTP_201_CREATED)

        return self.once(request, work)


class OneVersion(CatalogView):
    serializer_class = serializers.VersionOut

    @extend_schema(operation_id="versions_retrieve", responses=serializers.VersionOut)
    def get(self, request: Request, **_kwargs: Any) -> Response:
        """One version with its files and how far their uploads are."""
        return Response(self.version_out(self.version()))

    @extend_schema(operation_id="versions_delete", responses={204: None})
    def delete(self, request: Request, **_kwargs: Any) -> Response:
        """Abort a version that is uploading, or delete a rejected or archived one."""
        services.delete_version(actor=self.actor, tenant=self.tenant, version=self.version())
        return Response(status=status.HTTP_204_NO_CONTENT)


class Finalize(CatalogView):
    serializer_class = serializers.VersionOut

    @extend_schema(operation_id="versions_finalize", request=None, responses={202: serializers.VersionOut})
    def post(self, request: Request, **_kwargs: Any) -> Response:
        """Hand the version over to the check, once all its files are verified."""

        def work() -> Response:
            version = services.finalize_version(actor=self.actor, tenant=self.tenant, version=self.version())
            return Response(self.version_out(version), status.HTTP_202_ACCEPTED)

        return self.once(request, work)


class Archive(CatalogView):
    serializer_class = serializers.VersionOut

    @extend_schema(operation_id="versions_archive", request=None, responses={200: serializers.VersionOut})
    def post(self, request: Request, **_kwargs: Any) -> Response:
        """Take a ready version out of use; what runs goes on."""

        def work() -> Response:
            version = services.archive_version(actor=self.actor, tenant=self.tenant, version=self.version())
            return Response(self.version_out(version))

        return self.once(request, work)


class Aliases(CatalogView):
    serializer_class = serializers.AliasOut

    def get_queryset(self) -> "QuerySet[Alias]":
        return selectors.aliases_of(self.tenant, self.model())

    @extend_schema(operation_id="aliases_list", responses=serializers.AliasOut(many=True))
    def get(self, request: Request, **_kwargs: Any) -> Response:
        """Aliases of a model."""
        page = self.paginate_queryset(self.get_queryset())
        return self.get_paginated_response(self.get_serializer(page, many=True).data)


class OneAlias(CatalogView):
    serializer_class = serializers.AliasOut

    @extend_schema(operation_id="aliases_set", request=serializers.AliasIn, responses=serializers.AliasOut)
    def put(self, request: Request, **_kwargs: Any) -> Response:
        """Let the alias mean this version from now on."""
        number = self.parsed(serializers.AliasIn, request)["version"]
        model = self.model()
        alias = services.set_alias(
            actor=self.actor, tenant=self.tenant, model=model, name=self.kwargs["alias"],
            version=access.access_version(self.actor, self.tenant, model, number),
        )  # fmt: skip
        return Response(self.out(serializers.AliasOut, alias))

    @extend_schema(operation_id="aliases_delete", responses={204: None})
    def delete(self, request: Request, **_kwargs: Any) -> Response:
        """Forget the alias."""
        services.delete_alias(actor=self.actor, tenant=self.tenant, model=self.model(), name=self.kwargs["alias"])
        return Response(status=status.HTTP_204_NO_CONTENT)
