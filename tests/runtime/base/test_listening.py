"""Every connection to a server of ours sends small writes at once."""

import asyncio
import socket

import pytest

from runtime.base import listening


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_no_small_write_waits_for_the_acknowledgement_of_the_last(host):
    found = asyncio.get_running_loop().create_future()

    async def serve(_reader, writer):
        found.set_result(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    listener = listening.bind(host, 0)
    async with await asyncio.start_server(serve, sock=listener):
        _, writer = await asyncio.open_connection(*listener.getsockname()[:2])
        assert await asyncio.wait_for(found, 5) == 1
        writer.close()


def test_a_taken_address_is_refused_and_nothing_stays_open():
    with listening.bind("127.0.0.1", 0) as first:
        first.listen()
        with pytest.raises(OSError, match="in use"):
            listening.bind(*first.getsockname())
