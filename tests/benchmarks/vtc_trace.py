"""The published fairness runs (Sheng et al., OSDI 2024): requests of 27 clients, a cost profile, and the measure.

Reads ``real_*.json.gz`` (measured responses on one A10G) and ``cost_profile_a10g_llama7b.json`` from a folder.
"""

import dataclasses
import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from runtime.engine.causal.scheduler import StepPlan
from tests.benchmarks.simulation import Arrival, Served

PROFILE: Final = "cost_profile_a10g_llama7b.json"
POOL_TOKENS: Final = 10_000
# Between two steps the measured system does work of its own: fitted to one number that is not used here, the
# throughput of its run with eight equal clients.
OVERHEAD_SECONDS: Final = 0.0035
_SPAN, _WINDOW, _WARM_UP, _TICKS = 600.0, 60.0, 30.0, 20


@dataclasses.dataclass(frozen=True, slots=True)
class Response:
    """One answered request in seconds since the beginning."""

    tenant: str
    prompt: int
    output: int
    asked: float
    first: float
    ended: float

    @property
    def cost(self) -> float:
        """Its service: input + 2 × output tokens."""
        return self.prompt + 2.0 * self.output


def folder_of(stated: Path) -> Path:
    """The folder of the published runs: ``stated``, or its part ``vtc`` where it holds several sets of traces."""
    return stated / "vtc" if (stated / "vtc").is_dir() else stated


def load(folder: Path, scheduler: str) -> tuple[list[Response], float]:
    """Measured responses of ``scheduler`` (refused ones left out) and the seconds of the whole run."""
    with gzip.open(folder / f"real_{scheduler}.json.gz", "rt") as file:
        result = json.load(file)["result"]
    rows = [_response(row) for row in result["responses"] if row["first_token_latency"] != -1]
    return rows, float(result["total_time"])


def _response(row: dict[str, Any]) -> Response:
    asked = float(row["req_time"])
    return Response(
        tenant=row["adapter_dir"],
        prompt=int(row["prompt_len"]),
        output=int(row["output_len"]),
        asked=asked,
        first=asked + row["first_token_latency"],
        ended=asked + row["request_latency"],
    )


def arrivals(rows: Sequence[Response]) -> list[Arrival]:
    """The requests behind ``rows``."""
    return [Arrival(row.asked, row.tenant, row.prompt, row.output) for row in rows]


def responses(served: Sequence[Served]) -> list[Response]:
    """Simulated results in the form of the measured ones."""
    return [
        Response(
            item.arrival.tenant,
            item.arrival.prompt,
            item.arrival.output,
            item.arrival.at,
            item.first_token_at,
            item.ended_at,
        )
        for item in served
    ]


@dataclasses.dataclass(frozen=True, slots=True)
class CostModel:
    """Seconds of a step: a fixed part, paid once, and parts per prompt token, per decoding row, per context token."""

    prefill_fixed: float
    prefill_token: float
    decode_fixed: float
    decode_row: float
    decode_context: float

    def seconds(self, plan: StepPlan) -> float:
        """How long ``plan`` takes. A mixed step reads the weights once."""
        rows = context = chunk = 0
        for item in plan.work:
            if item.count == 1:
                rows += 1
                context += item.start + 1
            else:
                chunk += item.count
        fixed = self.prefill_fixed if chunk else self.decode_fixed
        return (
            fixed
            + OVERHEAD_SECONDS
            + chunk * self.prefill_token
            + rows * self.decode_row
            + context * self.decode_context
        )


def fit(folder: Path) -> CostModel:
    """Least squares over the profile: by input and output length, (batch, prefill and decode seconds per request)."""
    profile = json.loads((folder / PROFILE).read_text())
    prefill, prefill_s, decode, decode_s = [], [], [], []
    for input_text, by_output in profile.items():
        for output_text, (batch, prefill_each, decode_each) in by_output.items():
            inputs, outputs = int(input_text), int(output_text)
            prefill.append([1.0, batch * inputs])
            prefill_s.append(batch * prefill_each)
            if outputs > 1:
                decode.append([1.0, batch, batch * (inputs + (outputs + 1) / 2)])
                decode_s.append(batch * decode_each / outputs)
    a, b = np.linalg.lstsq(np.array(prefill), np.array(prefill_s), rcond=None)[0]
    c, d, e = np.linalg.lstsq(np.array(decode), np.array(decode_s), rcond=None)[0]
    return CostModel(float(a), float(b), float(c), float(d), float(e))


def differences(rows: Sequence[Response]) -> list[float]:
    """The paper's measure: at each tick, service missing to the best served client or to one's own demand, summed.

    Service is spread evenly from the first token to the last; demand counts where it was asked for; both per second
    over a window of a minute.
    """
    tenants = sorted({row.tenant for row in rows})
    return [_difference(rows, tenants, _WARM_UP + (_SPAN - _WARM_UP) / _TICKS * tick) for tick in range(1, _TICKS)]


def _difference(rows: Sequence[Response], tenants: Sequence[str], middle: float) -> float:
    low, high = middle - _WINDOW / 2, middle + _WINDOW / 2
    service, demand = dict.fromkeys(tenants, 0.0), dict.fromkeys(tenants, 0.0)
    for row in rows:
        if low <= row.asked <= high:
            demand[row.tenant] += row.cost / _WINDOW
        if row.ended - row.first > 1e-5:
            overlap = max(0.0, min(high, row.ended) - max(low, row.first))
            service[row.tenant] += row.cost * overlap / (row.ended - row.first) / _WINDOW
    best = max(service.values())
    return sum(min(best - service[name], abs(demand[name] - service[name])) for name in tenants)


def throughput(rows: Sequence[Response], seconds: float) -> float:
    """Tokens in and out per second."""
    return sum(row.prompt + row.output for row in rows) / seconds


def small_tenants_ttft(rows: Sequence[Response], large: int = 4) -> tuple[float, float]:
    """Mean and 99th percentile of the time to first token of all but the ``large`` biggest clients, seconds."""
    demand: dict[str, float] = {}
    for row in rows:
        demand[row.tenant] = demand.get(row.tenant, 0.0) + 1
    big = set(sorted(demand, key=lambda name: -demand[name])[:large])
    waits = sorted(row.first - row.asked for row in rows if row.tenant not in big)
    return sum(waits) / len(waits), waits[min(len(waits) - 1, int(0.99 * len(waits)))]
