"""What a rank that does not lead has on its device, and what it does with it."""

from collections.abc import Callable

import torch

from runtime.base import logs
from runtime.engine.causal import measure, startup
from runtime.engine.causal.runner import Runner
from runtime.engine.causal.steps import OutOfMemory
from runtime.engine.ranks import orders
from runtime.engine.ranks.peers import Peers, open_store
from runtime.engine.ranks.split import Split
from runtime.wire.inference import EngineSpec

_log = logs.get(__name__)


class Follower:
    """Loads at once; then :meth:`do` and :meth:`step`.

    Raises:
        errors.StartError: it cannot be served here; the reason and the numbers are in it.
    """

    def __init__(self, spec: EngineSpec, split: Split, progress: Callable[[float], None]) -> None:
        self._part = part = startup.load_part(spec, split, lambda _phase, share: progress(share or 0.0))
        self._split = split
        self._address = spec.rank_address
        self._block_tokens = part.spec.config.kv_block_tokens
        self._runner: Runner | None = None
        self._asleep = False
        self.held = part.held

    def meet(self, meet: orders.Meet) -> None:
        """Join the others; all do once all have loaded."""
        store = open_store(meet.store, self._split.size)
        self._part.model.peers = Peers(self._split, store, self._address, self._part.device)

    def step(self, step: orders.Step) -> None:
        """Compute this rank's part of ``step``."""
        batch = orders.unpacked(step)
        runner = self._there
        with torch.inference_mode():
            runner.reserve(batch)
            runner.forward(batch)

    def do(self, order: orders.Order) -> orders.Done:
        """Carry ``order`` out."""
        try:
            return orders.Done(freed=self._do(order))
        except (OutOfMemory, MemoryError, torch.OutOfMemoryError) as exc:
            return orders.Done(reason="OutOfMemory", message=str(exc) or "no memory", memory=True)
        except Exception as exc:  # the boundary to the leader, which ends the replica with this sentence
            _log.exception("order_failed", order=type(order).__name__)
            return orders.Done(reason=type(exc).__name__, message=str(exc))

    def _do(self, order: orders.Order) -> int:
        match order:
            case orders.Positions(count):
                self._part.model.resize_positions(count)
            case orders.Pool(blocks):
                self._runner = None
                self._part.probe.give_back()
                if blocks:
                    self._runner = self._new_runner(blocks)
            case orders.GiveBack(blocks=blocks, moves=moves):
                return self._there.give_back(blocks, moves)
            case orders.Scrub(blocks):
                self._there.scrub(blocks)
            case orders.Sleep() if not self._asleep:
                self._there.sleep()
                self._asleep = True
            case orders.Wake() if self._asleep:
                self._there.wake()
                self._asleep = False
        return 0

    def _new_runner(self, blocks: int) -> Runner:
        model = self._part.model
        cache = measure.new_pool(model, blocks, self._block_tokens)
        return Runner(model, cache, self._block_tokens, self._part.source.eos_ids)

    @property
    def _there(self) -> Runner:
        assert self._runner is not None, "the leader makes a pool first"
        return self._runner
