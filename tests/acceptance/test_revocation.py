"""A key is revoked over REST: real gateways refuse it, and the reply names them."""

import asyncio

import aiohttp

from tests.benchmarks.revocation import Round, one_round
from tests.build import plane


async def revoke_under_load() -> list[Round]:
    async with plane.running(gateways=2) as stack, aiohttp.ClientSession() as http:
        return [await one_round(http, stack, rate=20.0) for _ in range(2)]


def test_no_gateway_accepts_a_key_after_the_reply_that_names_it():
    rounds = asyncio.run(revoke_under_load())
    for done in rounds:
        assert done.refused > 0
        assert done.failures == 0
        if done.acknowledged == 2:  # both have said so: none may accept a request that is sent later
            assert done.accept_ms <= 0
    assert any(done.acknowledged == 2 for done in rounds)
