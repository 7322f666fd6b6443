"""How the OpenAPI document describes our two ways to sign in."""

from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension


class BearerScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]  # its metaclass hook has no types
    """A user token (``mpu_…``) or an API key with the scope ``manage`` (``mp_…``)."""

    target_class = "tenants.api.authentication.BearerAuthentication"
    name = "bearer"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:
        return {"type": "http", "scheme": "bearer", "description": self.__doc__}


class SessionScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """The console's session cookie; changes also need the CSRF token."""

    target_class = "tenants.api.authentication.SessionAuthentication"
    name = "session"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:
        return {"type": "apiKey", "in": "cookie", "name": "millpond_session", "description": self.__doc__}
