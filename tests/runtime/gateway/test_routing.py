"""Which variant and which replica: shares, stickiness, prefix affinity, bounded load, pressure."""

import collections
import random

import pytest

from runtime.gateway import affinity, balance, credits
from runtime.gateway.affinity import CHUNK_BYTES, PrefixIndex, keys_of, prompt_of
from runtime.gateway.asks import NOTHING, Outcome, Slot
from runtime.gateway.pool import Blocked
from runtime.gateway.refusals import Reason, Refusal
from runtime.wire.inference import HEADER_CREDITS, HEADER_LOAD
from tests.build.gateway_peers import a_replica, a_variant, an_endpoint
from tests.build.gateway_stage import Stage, replicas


class TestVariants:
    @pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
    def test_shares_follow_the_weights_in_any_order_and_weight_zero_gets_nothing(self, order):
        variants = [
            a_variant(a_replica("http://a", 1), weight=90, version=1),
            a_variant(a_replica("http://b", 2), weight=10, version=2),
            a_variant(a_replica("http://c", 3), weight=0, version=3),
        ]
        stage = Stage(an_endpoint("chat", *(variants[i] for i in order)))
        counts = {1: 0, 2: 0, 3: 0}
        for i in range(1000):
            slot = stage.take(draw=i / 1000)
            counts[slot.choice.variant.version] += 1
            stage.pool.give_back(slot, NOTHING)
        assert counts == {1: 900, 2: 100, 3: 0}

    def test_a_variant_without_replicas_leaves_its_share_to_the_others(self):
        stage = Stage(an_endpoint("chat", a_variant(weight=99), a_variant(a_replica("http://b"), weight=1, version=2)))
        assert {stage.take(draw=i / 10).choice.variant.version for i in range(10)} == {2}

    def test_another_try_stays_with_its_variant_while_that_has_replicas(self):
        stage = Stage(
            an_endpoint("chat", a_variant(*replicas(2)), a_variant(a_replica("http://b", 3), version=2)),
        )
        ask = stage.ask(draw=0.1)
        tried = []
        for _ in range(3):
            slot = stage.pool.take(ask)
            ask.tried.add(slot.choice.replica.replica_id)
            tried.append(slot.choice.variant.version)
        assert tried == [1, 1, 2]
        with pytest.raises(Refusal) as refused:
            stage.pool.take(ask)
        assert refused.value.reason is Reason.UPSTREAM_UNREACHABLE

    def test_sticky_callers_spread_by_the_weights(self):
        variants = [a_variant(weight=weight, version=version) for version, weight in ((1, 70), (2, 25), (3, 5))]
        counts = collections.Counter(balance.stick(variants, b"caller-%d" % i).version for i in range(20_000))
        assert [counts[version] / 20_000 for version in (1, 2, 3)] == pytest.approx([0.70, 0.25, 0.05], abs=0.011)

    def test_a_change_of_weights_moves_no_more_callers_than_it_must(self):
        before = [a_variant(weight=95, version=1), a_variant(weight=5, version=2)]
        after = [a_variant(weight=80, version=1), a_variant(weight=20, version=2)]
        callers = [b"caller-%d" % i for i in range(10_000)]
        moved = [
            (balance.stick(before, caller).version, balance.stick(after, caller).version)
            for caller in callers
            if balance.stick(before, caller).version != balance.stick(after, caller).version
        ]
        assert set(moved) == {(1, 2)}  # nobody goes the other way
        assert len(moved) / len(callers) == pytest.approx(0.15, abs=0.011)

    def test_a_variant_that_goes_away_leaves_the_others_callers_where_they_are(self):
        variants = [a_variant(weight=40, version=1), a_variant(weight=30, version=2), a_variant(weight=30, version=3)]
        for i in range(1000):
            was = balance.stick(variants, b"caller-%d" % i).version
            if was != 3:
                assert balance.stick(variants[:2], b"caller-%d" % i).version == was

    def test_a_sticky_caller_stays_while_draws_differ(self):
        stage = Stage(an_endpoint("chat", a_variant(*replicas(1)), a_variant(*replicas(1, 2), version=2)))
        seen = {stage.take(sticky=b"someone", draw=i / 20).choice.variant.version for i in range(20)}
        assert len(seen) == 1


class TestAffinity:
    def test_prompts_share_the_keys_of_their_common_beginning(self):
        text = random.Random(1).randbytes(10 * CHUNK_BYTES)
        other = text[: 6 * CHUNK_BYTES] + b"x" * 4 * CHUNK_BYTES
        one, two = keys_of(text, "salt"), keys_of(other, "salt")
        assert len(one) == len(two) == 10
        assert [a == b for a, b in zip(one, two, strict=True)] == [True] * 6 + [False] * 4
        assert keys_of(text[:-1], "salt") == one[:9]
        assert keys_of(text[: CHUNK_BYTES - 1], "salt") == []

    def test_tenants_share_no_keys(self):
        text = b"x" * 5 * CHUNK_BYTES
        assert not set(keys_of(text, "salt-a")) & set(keys_of(text, "salt-b"))

    def test_a_longer_conversation_begins_as_the_shorter_did(self):
        turn = b'{"role":"user","content":"' + b"words " * 1000 + b'"}'
        short = b'{"model":"a","messages":[' + turn + b'],"max_tokens":5}'
        long = b'{"model":"b","temperature":1,"messages":[' + turn + b"," + turn + b"]}"
        common = len(b'"messages":[' + turn) // CHUNK_BYTES
        assert keys_of(prompt_of(short), "s")[:common] == keys_of(prompt_of(long), "s")[:common]

    def test_an_escaped_field_name_inside_a_text_is_not_taken_for_the_field(self):
        body = b'{"model":"\\"messages\\":[","messages":[1]}'
        assert bytes(prompt_of(body)) == b'"messages":[1]}'

    def test_a_prompt_beyond_all_bounds_has_a_bounded_number_of_keys(self):
        assert len(keys_of(bytes(3 * affinity.MAX_CHUNKS * CHUNK_BYTES), "s")) == affinity.MAX_CHUNKS

    def test_the_index_forgets_the_oldest_and_keeps_beginnings(self):
        index = PrefixIndex(8)
        index.add([1, 2, 3, 4, 5])
        index.add([1, 2, 6, 7, 8, 9])
        assert len(index) == 8
        assert index.match([1, 2, 6, 7, 8, 9]) == 6
        assert index.match([1, 2, 3, 4, 5]) == 4  # its end was the oldest
        index.add(list(range(100, 200)))
        assert len(index) == 8
        assert index.match([1]) == 0


class TestReplicas:
    def test_without_a_shared_beginning_the_least_loaded_is_taken(self):
        stage = Stage(an_endpoint("chat", a_variant(*replicas(4))))
        big = {stage.place("x" * 40_000 + str(i)) for i in range(2)}
        small = [stage.place("y") for _ in range(2)]
        assert len(big) == 2
        assert not big & set(small)

    def test_idle_replicas_take_turns(self):
        stage = Stage(an_endpoint("chat", a_variant(*replicas(4))))
        assert len({stage.place("hello") for _ in range(4)}) == 4

    def test_a_known_beginning_draws_a_request_to_its_replica(self):
        stage = Stage(an_endpoint("chat", a_variant(*replicas(4))))
        text = "the same long beginning " * 1000
        first = stage.take(text)
        for number in range(8):
            other = stage.take(f"{number} something else " * 1000)
            stage.pool.give_back(other, Outcome(e2e_ms=1.0, completion=10))
        stage.pool.give_back(first, Outcome(e2e_ms=1.0, completion=10))
        slot = stage.take(text + "and its next turn")
        assert slot.choice.replica == first.choice.replica
        assert slot.work < first.work / 2

    def test_a_beginning_that_all_share_does_not_fill_one_replica(self):
        """Prefix alone would send everything to one; the bound keeps every replica near the mean."""
        stage = Stage(an_endpoint("chat", a_variant(*replicas(4))), assumed_credits=10_000)
        shared = "system prompt " * 500
        for number in range(400):
            stage.take(shared + f"{number} question " * 30)
        loads = [state.work for state in stage.pool.replicas.values()]
        assert max(loads) <= balance.MOST_OVER_MEAN * sum(loads) / len(loads) * 1.02

    def test_the_same_beginning_of_another_tenant_draws_nothing(self):
        text = "the same long beginning " * 1000
        stage = Stage(an_endpoint("chat", a_variant(*replicas(2))))
        first = stage.take(text)
        work = stage.take(text, salt="of-beta").work
        assert work == first.work

    def test_a_replica_whose_kv_cache_is_full_is_taken_last(self):
        stage = Stage(an_endpoint("chat", a_variant(*replicas(3))))
        stage.place()
        for number, free in (("1", "0.01"), ("2", "0.9"), ("3", "0.02")):
            told = credits.of_answer({HEADER_LOAD: f"running=0;waiting=0;kv_free={free}"})
            stage.pool.replicas[f"replica-{number}"].hear(told, stage.clock.monotonic())
        assert [stage.place() for _ in range(5)] == ["replica-2"] * 5
        stage.clock.advance(60)  # what was told is old now, and says nothing
        assert {stage.place() for _ in range(8)} >= {"replica-1", "replica-3"}

    def test_other_gateways_requests_count(self):
        stage = Stage(an_endpoint("chat", a_variant(*replicas(2))))
        stage.place()
        told = credits.of_answer({HEADER_LOAD: "running=20;waiting=30;kv_free=0.9"})
        stage.pool.replicas["replica-1"].hear(told, stage.clock.monotonic())
        assert [stage.place() for _ in range(5)] == ["replica-2"] * 5

    def test_a_replica_without_credit_is_passed_over_and_then_there_is_waiting(self):
        stage = Stage(an_endpoint("chat", a_variant(*replicas(2))))
        stage.place()
        for state in stage.pool.replicas.values():
            state.hear(credits.of_answer({HEADER_CREDITS: "2"}), stage.clock.monotonic())
        taken = [stage.take() for _ in range(3)]
        assert {slot.choice.replica.replica_id for slot in taken} == {"replica-1", "replica-2"}
        assert stage.take() == Blocked("deployment-1", cold=False)
        stage.pool.give_back(taken[0], NOTHING)
        assert isinstance(stage.take(), Slot)

    def test_nobody_passes_those_who_wait(self):
        stage = Stage(an_endpoint("chat", a_variant(*replicas(2))))
        assert stage.take(lines=["deployment-1"]) == Blocked("deployment-1", cold=False)

    def test_a_cold_deployment_is_waited_for_only_if_a_replica_is_coming(self):
        variant = a_variant()
        with pytest.raises(Refusal) as refused:
            Stage(an_endpoint("chat", variant, state="Being loaded.")).take()
        assert (refused.value.status, refused.value.message) == (503, "Being loaded.")
        coming = type(variant)(**{**{name: getattr(variant, name) for name in variant.__struct_fields__}, "coming": 1})
        assert Stage(an_endpoint("chat", coming)).take() == Blocked("deployment-1", cold=True)

    def test_a_new_replica_is_not_flooded(self):
        one, two, three = replicas(3)
        stage = Stage(an_endpoint("chat", a_variant(one, two)))
        for number in range(40):
            stage.pool.give_back(stage.take(f"{number}" * 4000), Outcome(e2e_ms=1.0, completion=10))
        stage.endpoint = an_endpoint("chat", a_variant(one, two, three))
        counts = collections.Counter()
        for number in range(30):
            slot = stage.take(f"more {number}" * 1000)
            stage.pool.give_back(slot, Outcome(e2e_ms=1.0, completion=10))
            counts[slot.choice.replica.replica_id] += 1
        assert 5 <= counts["replica-3"] <= 15

    @pytest.mark.parametrize("load", ["", "kv_free=nan", "kv_free=x;running=-1", ";;;", "running=9999999999999"])
    def test_what_cannot_be_read_of_a_load_counts_as_not_said(self, load):
        told = credits.of_answer({HEADER_LOAD: load, HEADER_CREDITS: "many"})
        assert told == credits.Told(None, 0, 0, None)
