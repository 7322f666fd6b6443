"""How often a prefix is found again: block hashes of a public trace through the product's block pool.

``make bench-prefix-cache TRACES=FOLDER`` (or ``--traces``): the folder (or file) of ``conversation_trace.jsonl``, whose
rows name the 512-token blocks of each prompt by number; equal numbers are equal prefixes. Requests come one after the
other and hold nothing while others come: what is measured is the cache alone, at pools of several sizes and against
one that never evicts. Prints a table, and one JSON object as its last line.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Final

from runtime.engine.causal.blocks import BlockPool

FILE: Final = "conversation_trace.jsonl"
FOLDER: Final = "mooncake"  # where several sets of traces are in one
BLOCK_TOKENS: Final = 512  # of the trace
# Million tokens of KV cache.
SIZES: Final = (1.0, 2.6, 5.1, 15.4, 25.6, 51.0)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", default=os.environ.get("TRACES"), help="folder or file of the trace")
    parser.add_argument("--requests", type=int, default=0, help="only so many from the beginning; 0: all")
    options = parser.parse_args()
    path = Path(options.traces or "")
    path = path / FOLDER if (path / FOLDER).is_dir() else path
    path = path / FILE if path.is_dir() else path
    if not path.is_file():
        sys.exit("Give the folder of the trace: make bench-prefix-cache TRACES=FOLDER.")
    prompts = read(path, options.requests)
    blocks = sum(map(len, prompts))
    unlimited = replay(prompts, len({name for prompt in prompts for name in prompt}) + max(map(len, prompts)))
    print(f"{len(prompts)} requests, {blocks} blocks; unlimited cache: {unlimited:.1%} of the blocks are found")
    print(f"{'million tokens':>16}{'hit':>8}{'of unlimited':>14}")
    hits = {}
    for size in SIZES:
        hits[size] = replay(prompts, int(size * 1e6) // BLOCK_TOKENS)
        print(f"{size:>16.1f}{hits[size]:>8.1%}{hits[size] / unlimited if unlimited else 0.0:>14.1%}")
    summary = {f"hit_{size}m": round(share, 4) for size, share in hits.items()}
    print(json.dumps({"requests": len(prompts), "hit_unlimited": round(unlimited, 4), **summary}))


def read(path: Path, limit: int = 0) -> list[list[int]]:
    """Block numbers of each prompt, in order of arrival."""
    with path.open() as file:
        rows = [json.loads(line) for _, line in zip(range(limit or 1 << 62), file, strict=False)]
    rows.sort(key=lambda row: row["timestamp"])
    return [row["hash_ids"] for row in rows]


def replay(prompts: list[list[int]], pool_blocks: int) -> float:
    """Share of all prompt blocks that a pool of ``pool_blocks`` still held when they were asked for.

    One number of the trace stands for one block here: pools of one-token blocks, the number being the token. The
    engine always computes the last token of a prompt, so a token that nobody else has is put at the end of each.
    """
    pool = BlockPool(pool_blocks, 1)
    found = total = 0
    for prompt in prompts:
        total += len(prompt)
        held = prompt[:pool_blocks]  # the few prompts that are larger than the smallest pool keep their beginning
        blocks, names = pool.match(b"", [*held, 0])
        found += len(blocks)
        blocks += pool.take(min(len(held) - len(blocks), pool.available))
        for number in range(len(names), len(blocks)):
            names.append(pool.publish(blocks[number], names[-1] if names else b"", [held[number]]))
        pool.release(blocks)
    return found / total if total else 0.0


if __name__ == "__main__":
    main()
