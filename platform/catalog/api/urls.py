"""Routes of this room below ``/api/v1/``. Uploads are bare ASGI: see ``catalog.api.tus_asgi``."""

from django.urls import path

from catalog.api import views

_MODEL = "tenants/<slug:tenant>/models/<str:model>"

urlpatterns = [
    path("tenants/<slug:tenant>/models", views.Models.as_view(), name="models"),
    path(_MODEL, views.OneModel.as_view(), name="model"),
    path(f"{_MODEL}/versions", views.Versions.as_view(), name="versions"),
    path(f"{_MODEL}/versions/<int:number>", views.OneVersion.as_view(), name="version"),
    path(f"{_MODEL}/versions/<int:number>/finalize", views.Finalize.as_view(), name="version-finalize"),
    path(f"{_MODEL}/versions/<int:number>/archive", views.Archive.as_view(), name="version-archive"),
    path(f"{_MODEL}/aliases", views.Aliases.as_view(), name="aliases"),
    path(f"{_MODEL}/aliases/<str:alias>", views.OneAlias.as_view(), name="alias"),
]
