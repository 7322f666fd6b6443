"""How busy this engine is, for gateways: its own path, and headers on every answer under ``/v1/``."""

from typing import Final

from runtime.base import asgi
from runtime.base.clock import Clock
from runtime.engine.causal import credits
from runtime.engine.lifecycle import Lifecycle
from runtime.wire import inference
from runtime.wire.inference import EngineLoad
from runtime.wire.reports import Phase

TAKES_REQUESTS: Final = frozenset({Phase.READY, Phase.DEGRADED, Phase.ASLEEP})
_UNAUTHORIZED: Final = 401
_MAX_NAME: Final = 128


class LoadDesk:
    """Answers what a gateway asks, and remembers which gateways there are."""

    def __init__(self, lifecycle: Lifecycle, clock: Clock) -> None:
        self._lifecycle = lifecycle
        self._clock = clock
        self._roll = credits.GatewayRoll()

    def load(self, gateway: str) -> EngineLoad:
        """The load as of now, with the credits of ``gateway`` (empty: a caller that is none)."""
        gateways = self._roll.hear(gateway[:_MAX_NAME], self._clock.monotonic())
        phase, loaded = self._lifecycle.phase, self._lifecycle.loaded
        if loaded is None:
            return EngineLoad(phase=phase, credits=0, running=0, waiting=0, kv_free=0.0, tokens_total=0)
        figures = loaded.engine.load()
        return EngineLoad(
            phase=phase,
            credits=credits.share(
                slots=figures.slots,
                places=figures.places,
                gateways=gateways,
                admission_open=figures.admission_open and phase in TAKES_REQUESTS,
            ),
            running=figures.running,
            waiting=figures.waiting,
            kv_free=figures.kv_free,
            tokens_total=figures.tokens_total,
            oldest_waiting_ms=figures.oldest_waiting_ms,
        )

    def headers(self, gateway: str) -> list[tuple[bytes, bytes]]:
        """``HEADER_CREDITS`` and ``HEADER_LOAD`` as of now."""
        load = self.load(gateway)
        text = f"running={load.running};waiting={load.waiting};kv_free={load.kv_free:.2f}"
        return [
            (inference.HEADER_CREDITS.encode(), str(load.credits).encode()),
            (inference.HEADER_LOAD.encode(), text.encode()),
        ]

    def tell(self, scope: asgi.Scope, send: asgi.Send) -> asgi.Send:
        """``send`` with the headers added when the answer starts; whoever is not authenticated learns nothing."""

        async def telling(message: asgi.Message) -> None:
            if message["type"] == "http.response.start" and message["status"] != _UNAUTHORIZED:
                message = {**message, "headers": [*message["headers"], *self.headers(_gateway(scope))]}
            await send(message)

        return telling


def _gateway(scope: asgi.Scope) -> str:
    name = inference.HEADER_GATEWAY.encode()
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), "")
