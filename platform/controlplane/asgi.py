"""The web process: Django for pages and REST, bare ASGI for upload bodies and reports, Channels for sockets."""

import os
import sys
from typing import Any, Final, cast

from django.core.asgi import get_asgi_application
from django.urls import re_path

#: A report asks for the interpreter after every answer of the database. With Python's own 5 ms it would wait that long,
#: dozens of times, behind each list that another thread is building.
_SWITCH_SECONDS: Final = 0.0005

sys.setswitchinterval(_SWITCH_SECONDS)
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
django_app = get_asgi_application()

from channels.auth import AuthMiddlewareStack  # noqa: E402  (needs Django set up)
from channels.routing import ProtocolTypeRouter, URLRouter  # noqa: E402
from channels.security.websocket import AllowedHostsOriginValidator  # noqa: E402

from catalog.api import tus_asgi  # noqa: E402
from console.live import routing as console_routing  # noqa: E402
from controlplane import bodies  # noqa: E402
from dispatch.api import machines_asgi  # noqa: E402
from dispatch.api import sockets as dispatch_sockets  # noqa: E402


async def http(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Upload bodies are streamed to disk as they come; Django would spool a whole body first."""
    if tus_asgi.matches(scope):
        await tus_asgi.application(scope, receive, send)
    elif machines_asgi.matches(scope):
        await _reports(scope, receive, send)
    else:
        await _django(scope, receive, send)


async def websocket(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Nodes and gateways carry a credential and no cookie; browsers carry a cookie and an origin."""
    await (_machines if scope["path"].startswith("/internal/") else _browsers)(scope, receive, send)


async def _nowhere(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """A socket at a path that is none: refused before it opens."""
    await receive()
    await send({"type": "websocket.close", "code": 4404})


def _router(routes: list[Any]) -> URLRouter:
    return URLRouter([*routes, re_path("", cast(Any, _nowhere))])


_django = bodies.bounded(django_app)
_reports = bodies.bounded(machines_asgi.application)
_machines = _router(dispatch_sockets.urlpatterns)
_browsers = AllowedHostsOriginValidator(AuthMiddlewareStack(_router(console_routing.urlpatterns)))
application = ProtocolTypeRouter({"http": http, "websocket": websocket})
