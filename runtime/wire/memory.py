"""The memory ledger of a replica: who holds the bytes of its device, and where the watermarks are."""

import msgspec


class Watermarks(msgspec.Struct, frozen=True, kw_only=True):
    """Marks on the level, as fractions of ``MemoryLedger.total_bytes`` (0 < low < high < critical <= 1)."""

    low: float = 0.75
    high: float = 0.88
    critical: float = 0.95


class MemoryLedger(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes on one device as seen by one replica. All fields are bytes unless the name says otherwise.

    ``total_bytes`` is what the replica may use: its partition's cap, or the whole device.
    The level is what cannot be taken back without hurting someone: everything but KV blocks that are only
    cached and what is free.
    """

    total_bytes: int
    other_bytes: int = 0
    context_bytes: int = 0
    weights_bytes: int = 0
    workspace_bytes: int = 0
    kv_total_bytes: int = 0
    kv_used_bytes: int = 0
    kv_cached_bytes: int = 0
    device_free_bytes: int = 0
    kv_block_tokens: int = 0
    kv_blocks_total: int = 0
    kv_blocks_used: int = 0
    kv_blocks_cached: int = 0
    watermarks: Watermarks = Watermarks()

    @property
    def level_bytes(self) -> int:
        """Bytes below the level line."""
        return self.other_bytes + self.context_bytes + self.weights_bytes + self.workspace_bytes + self.kv_used_bytes

    @property
    def level(self) -> float:
        """``level_bytes`` as a fraction of ``total_bytes``; 0 for an empty device."""
        return self.level_bytes / self.total_bytes if self.total_bytes else 0.0
