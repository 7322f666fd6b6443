"""The web process: Django for pages and REST, bare ASGI for upload bodies, Channels for sockets."""

import os
from typing import Any

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
django_app = get_asgi_application()

from catalog.api import tus_asgi  # noqa: E402
from channels.auth import AuthMiddlewareStack  # noqa: E402  (needs Django set up)
from channels.routing import ProtocolTypeRouter, URLRouter  # noqa: E402
from channels.security.websocket import AllowedHostsOriginValidator  # noqa: E402

from console.live import routing as console_routing  # noqa: E402
from dispatch.api import sockets as dispatch_sockets  # noqa: E402


async def http(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Upload bodies are streamed to disk as they come; Django would spool a whole body first."""
    if tus_asgi.matches(scope):
        await tus_asgi.application(scope, receive, send)
    else:
        await django_app(scope, receive, send)


async def websocket(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Nodes and gateways carry a credential and no cookie; browsers carry a cookie and an origin."""
    await (_machines if scope["path"].startswith("/internal/") else _browsers)(scope, receive, send)


_machines = URLRouter(dispatch_sockets.urlpatterns)
_browsers = AllowedHostsOriginValidator(AuthMiddlewareStack(URLRouter(console_routing.urlpatterns)))
application = ProtocolTypeRouter({"http": http, "websocket": websocket})
