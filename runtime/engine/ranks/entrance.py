"""The leader's door for ranks of other nodes: each comes in once, with a proof; after the last it is shut.

Strangers cost a socket for a few seconds and nothing else: one thread serves all callers, their number is bounded, and
so are the bytes and the time of each.
"""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterable
from typing import Final

from runtime.base import listening, logs
from runtime.engine import errors
from runtime.engine.ranks import handshake, orders, streams
from runtime.engine.ranks.handshake import Challenge, Message, Refused, Response, Secret, Welcome

_log = logs.get(__name__)

#: Callers that have proved nothing yet, at one time.
MAX_CALLERS: Final = 256
#: So many refusals are logged.
_LOGGED: Final = 20
_BACKLOG: Final = 128
_PAUSE_SECONDS: Final = 0.1

Joined = Callable[[int, socket.socket, str], None]


class Entrance:
    """Listens at ``address`` until all of ``ranks`` have come, or ``patience`` seconds have passed.

    ``on_joined`` gets the rank, its stream and the address that it calls from; ``on_late`` the ranks that did not come.
    Both are called from the thread of the entrance.

    Raises:
        errors.StartError: it cannot listen there.
    """

    def __init__(
        self,
        address: tuple[str, int],
        secret: Secret,
        ranks: Iterable[int],
        *,
        patience: float,
        on_joined: Joined,
        on_late: Callable[[list[int]], None],
    ) -> None:
        self._secret = secret
        self._missing = set(ranks)
        self._patience = patience
        self._on_joined = on_joined
        self._on_late = on_late
        self._refusals = 0
        self._calls: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        try:
            self._listener = listening.bind(*address)
        except OSError as exc:
            self._loop.close()
            raise errors.StartError(
                "AddressInUse",
                f"The ranks of other nodes cannot be waited for at {address[0]}:{address[1]}: {exc.strerror}.",
            ) from exc
        self._listener.listen(_BACKLOG)
        self._listener.setblocking(False)
        threading.Thread(target=self._serve, name="entrance", daemon=True).start()

    def close(self) -> None:
        """Wait for nobody any more; no harm when it is over already."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._over.set)

    def _serve(self) -> None:
        try:
            late = self._loop.run_until_complete(self._run())
        finally:
            self._listener.close()
            self._loop.close()
        if late:
            self._on_late(sorted(self._missing))

    async def _run(self) -> bool:
        """True when the time was over before all had come."""
        accepting = asyncio.create_task(self._accept())
        late = False
        try:
            async with asyncio.timeout(self._patience):
                await self._over.wait()
        except TimeoutError:
            late = True
        pending = [accepting, *self._calls]
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        return late

    async def _accept(self) -> None:
        while True:
            try:
                stream, peer = await self._loop.sock_accept(self._listener)
            except OSError:  # no descriptor is left, or the caller is gone already
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            if len(self._calls) >= MAX_CALLERS:
                stream.close()
                continue
            call = asyncio.create_task(self._receive(stream, peer[0]))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)

    async def _receive(self, stream: socket.socket, host: str) -> None:
        try:
            streams.keep_watch(stream)
            stream.setblocking(False)
            async with asyncio.timeout(handshake.EXCHANGE_SECONDS):
                rank = await self._exchange(stream)
            stream.setblocking(True)
        except (OSError, Refused, orders.Closed) as exc:  # TimeoutError is an OSError
            stream.close()
            self._refusals += 1
            if self._refusals <= _LOGGED:
                _log.warning("caller_refused", host=host, error=str(exc) or type(exc).__name__)
            return
        except BaseException:
            stream.close()
            raise
        self._on_joined(rank, stream, host)
        if not self._missing:
            self._over.set()

    async def _exchange(self, stream: socket.socket) -> int:
        challenge = handshake.new_nonce()
        await self._loop.sock_sendall(stream, handshake.encoded(Challenge(challenge)))
        said = await self._read(stream, Response)
        if not handshake.is_rank(self._secret, said, challenge):
            raise Refused("it does not know the secret of this replica")
        if said.rank not in self._missing:
            raise Refused(f"rank {said.rank} is not waited for")
        self._missing.discard(said.rank)  # before anything is awaited: nobody comes twice
        proof = self._secret.of_leader(said.rank, challenge, said.nonce)
        try:
            await self._loop.sock_sendall(stream, handshake.encoded(Welcome(proof)))
        except BaseException:
            self._missing.add(said.rank)
            raise
        return said.rank

    async def _read(self, stream: socket.socket, kind: type[Message]) -> Message:
        length = orders.length_of(await self._exactly(stream, orders.HEAD_BYTES), handshake.MAX_BYTES)
        return handshake.decoded(await self._exactly(stream, length), kind)

    async def _exactly(self, stream: socket.socket, count: int) -> bytes:
        found = b""
        while len(found) < count:
            got = await self._loop.sock_recv(stream, count - len(found))
            if not got:
                raise Refused("it has hung up")
            found += got
        return found
