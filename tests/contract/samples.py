"""One full sample and one with defaults only of every wire message: what the golden files are made from.

A message is every ``msgspec.Struct`` in ``runtime.wire``; :func:`messages` finds them, so no new one is forgotten.
"""

import importlib
import inspect
import pkgutil
from typing import Final

import msgspec

import runtime.wire
from runtime.wire import assignments, errors, inference, joining, memory, reports, routes, usage, version
from tests.contract.device_samples import (
    CLOCKS,
    DEVICE,
    DEVICE_REPORT,
    ECC,
    HEALTH,
    HOST,
    LAYOUT,
    LAYOUT_REPORT,
    MIG,
    MIG_FACTS,
    MIG_INSTANCE,
    MIG_PROFILE,
    NVLINK,
    PATH,
    PCIE,
    PROCESS,
    RAIL,
    REMAP,
    REPLICA,
    WALL,
)

TENANT: Final = "01970000-0000-7000-8000-000000000001"
OWNER: Final = "01970000-0000-7000-8000-000000000002"
KEY: Final = "01970000-0000-7000-8000-000000000003"
ENDPOINT: Final = "01970000-0000-7000-8000-000000000004"
DEPLOYMENT: Final = "01970000-0000-7000-8000-000000000005"
REVISION: Final = "01970000-0000-7000-8000-000000000006"
NODE: Final = "01970000-0000-7000-8000-000000000008"
GATEWAY: Final = "01970000-0000-7000-8000-000000000009"
RECORD: Final = "01970000-0000-7000-8000-00000000000a"
SHA: Final = "0f" * 32


def messages() -> dict[str, type[msgspec.Struct]]:
    """Every struct of the contract, by ``module.Name``."""
    found: dict[str, type[msgspec.Struct]] = {}
    for module_info in pkgutil.iter_modules(runtime.wire.__path__):
        module = importlib.import_module(f"runtime.wire.{module_info.name}")
        for name, value in inspect.getmembers(module, inspect.isclass):
            if issubclass(value, msgspec.Struct) and value.__module__ == module.__name__:
                found[f"{module_info.name}.{name}"] = value
    return found


WATERMARKS: Final = memory.Watermarks(low=0.5, high=0.75, critical=0.875)
LEDGER: Final = memory.MemoryLedger(
    total_bytes=80_000_000_000,
    other_bytes=1_000,
    context_bytes=500_000_000,
    weights_bytes=16_000_000_000,
    workspace_bytes=2_000_000_000,
    kv_total_bytes=40_000_000_000,
    kv_used_bytes=10_000_000_000,
    kv_cached_bytes=5_000_000_000,
    device_free_bytes=21_000_000_000,
    kv_block_tokens=16,
    kv_blocks_total=4_000,
    kv_blocks_used=1_000,
    kv_blocks_cached=500,
    watermarks=WATERMARKS,
)
STATS: Final = reports.EngineStats(
    num_requests_running=3,
    num_requests_waiting=2,
    max_num_seqs=32,
    admission_open=False,
    requests_total=100,
    requests_failed_total=4,
    requests_aborted_total=5,
    prompt_tokens_total=6_000,
    cached_tokens_total=700,
    completion_tokens_total=8_000,
    preemptions_total=9,
    steps_total=10_000,
    tokens_per_second=123.5,
    ttft_p50_ms=20.25,
    ttft_p95_ms=45.5,
    itl_p50_ms=8.125,
    itl_p95_ms=16.5,
    queue_p95_ms=3.75,
    sleeps_total=11,
    wakes_total=10,
    last_wake_ms=87.5,
)
CONFIG: Final = assignments.EngineConfig(
    engine="causal",
    dtype="bfloat16",
    quantization="int8",
    max_model_len=4_096,
    max_num_seqs=16,
    max_num_batched_tokens=2_048,
    max_waiting=64,
    kv_block_tokens=32,
    kv_cache_bytes=1_073_741_824,
    enable_prefix_cache=False,
    num_threads=4,
    tenant_kv_share=0.5,
    queue_timeout_seconds=30.5,
    sleep_after_seconds=600.5,
    kv_dtype="int8",
    offload_layers=3,
    watermarks=WATERMARKS,
)
ARTIFACT: Final = assignments.ArtifactRef(path="model.safetensors", sha256=SHA, size=123_456_789)
GRANT: Final = assignments.DeviceGrant(
    uuid=DEVICE, memory_bytes=20_000_000_000, share=assignments.Share.MIG, mig_uuid=MIG, thread_percentage=40
)
WORLD: Final = assignments.World(
    size=8, ranks=[4, 5, 6, 7], leader="10.0.0.7:29500", tensor=4, pipeline=2, expert=8
)  # fmt: skip
ASSIGNMENT: Final = assignments.ReplicaAssignment(
    replica_id=REPLICA,
    generation=4,
    desired=assignments.Desired.DRAIN,
    deployment_id=DEPLOYMENT,
    revision_id=REVISION,
    tenant_id=OWNER,
    served_name="väder/prognos",
    format="huggingface",
    artifacts=[ARTIFACT],
    devices=[GRANT],
    config=CONFIG,
    token="a replica's token",
    drain_seconds=60,
    backoff_seconds=2.5,
    host_memory_bytes=8_000_000_000,
    millicpus=4_000,
    world=WORLD,
)
REPLICA_REPORT: Final = reports.ReplicaReport(
    replica_id=REPLICA,
    generation=4,
    phase=reports.Phase.WARMING,
    reason="EngineRestarted",
    message="The engine ended with code 1 and was started again.",
    progress=0.5,
    address="http://127.0.0.1:40001",
    pid=4711,
    restarts=1,
    ledger=LEDGER,
    stats=STATS,
    log_tail=["first line", "second line"],
)
LIMITS: Final = routes.RateLimits(requests_per_minute=60, tokens_per_minute=100_000, max_parallel_requests=8)
BUDGET: Final = routes.Budget(
    limit=5_000_000, unit="cost", period="month", period_start=1_761_955_200.0, used=1_250_000, blocks=False
)
PRICE: Final = routes.TokenPrice(prompt=500_000, cached=50_000, completion=1_500_000)
SLO: Final = routes.Slo(ttft_p95_ms=500.0, itl_p95_ms=40.5, e2e_p95_ms=9_000.0, error_rate=0.01)
EJECTION: Final = routes.Ejection(
    replica_id=REPLICA,
    generation=4,
    reason="NoTokens",
    message="Requests wait and no token came for 30 s.",
    since=1_764_000_000.5,
)
ADAPTIVE: Final = routes.AdaptiveLimit(deployment_id=DEPLOYMENT, limit=24, in_flight=20, queued=3)
KEY_ENTRY: Final = routes.KeyEntry(
    id=KEY,
    digest=SHA,
    tenant_id=TENANT,
    expires_at=1_800_000_000.5,
    allowed_endpoints=["chat", "owner/other"],
    limits=LIMITS,
    kind="playground",
    previous_digest="1e" * 32,
    previous_expires_at=1_790_000_000.5,
    allowed_addresses=["10.0.0.0/8", "2001:db8::/32"],
    criticalities=["critical"],
    budget=BUDGET,
    picks_revision=True,
)
TENANT_ENTRY: Final = routes.TenantEntry(
    id=TENANT, slug="acme", prefix_salt="5a17", active=False, limits=LIMITS, weight=2.5, budget=BUDGET
)
ROUTE: Final = routes.ReplicaRoute(
    replica_id=REPLICA,
    generation=4,
    url="http://10.0.0.7:40001",
    token="a replica's token",
    node_id=NODE,
    asleep=True,
)
VARIANT: Final = routes.Variant(
    deployment_id=DEPLOYMENT, revision_id=REVISION, version=7, weight=100, replicas=[ROUTE], coming=2, revision_number=9
)
ENDPOINT_ENTRY: Final = routes.EndpointEntry(
    id=ENDPOINT,
    name="chat",
    tenant_id=OWNER,
    granted_tenant_ids=[TENANT],
    created=1_764_000_000,
    max_model_len=4_096,
    variants=[VARIANT],
    state="Two replicas are loading.",
    sticky="user",
    slo=SLO,
    price=PRICE,
)
USAGE_RECORD: Final = usage.UsageRecord(
    id=RECORD,
    request_id="req-1",
    tenant_id=TENANT,
    owner_tenant_id=OWNER,
    key_id=KEY,
    endpoint_id=ENDPOINT,
    deployment_id=DEPLOYMENT,
    revision_id=REVISION,
    replica_id=REPLICA,
    operation="chat.completions",
    status=499,
    outcome="aborted",
    started_at=1_764_000_000.25,
    duration_ms=1_234.5,
    ttft_ms=56.75,
    prompt_tokens=10,
    cached_tokens=4,
    completion_tokens=20,
    billable=False,
    picked=True,
)
PROTOCOL: Final = version.ProtocolVersion(major=1, minor=0)

FULL: Final[dict[str, msgspec.Struct]] = {
    "assignments.ArtifactRef": ARTIFACT,
    "assignments.DeviceGrant": GRANT,
    "assignments.EngineConfig": CONFIG,
    "assignments.NodeAssignments": assignments.NodeAssignments(
        node_id=NODE, generation=12, replicas=[ASSIGNMENT], layouts=[LAYOUT], protocol=PROTOCOL
    ),
    "assignments.ReplicaAssignment": ASSIGNMENT,
    "assignments.World": WORLD,
    "devices.ClockFacts": CLOCKS,
    "devices.DevicePath": PATH,
    "devices.DeviceReport": DEVICE_REPORT,
    "devices.EccFacts": ECC,
    "devices.GpuProcess": PROCESS,
    "devices.HealthFact": HEALTH,
    "devices.HostReport": HOST,
    "devices.MigFacts": MIG_FACTS,
    "devices.MigInstance": MIG_INSTANCE,
    "devices.MigLayout": LAYOUT,
    "devices.MigLayoutReport": LAYOUT_REPORT,
    "devices.MigPlacement": LAYOUT.placements[0],
    "devices.MigProfile": MIG_PROFILE,
    "devices.NvLinkFacts": NVLINK,
    "devices.PcieFacts": PCIE,
    "devices.RdmaRail": RAIL,
    "devices.RemapFacts": REMAP,
    "devices.Wall": WALL,
    "errors.ErrorBody": errors.ErrorBody(code=errors.ErrorCode.TOKEN_USED, message="The token was used."),
    "inference.EngineAddress": inference.EngineAddress(url="http://127.0.0.1:40001", pid=4711, started=1_764_000_000.5),
    "inference.EngineLoad": inference.EngineLoad(
        phase=reports.Phase.READY,
        credits=12,
        running=3,
        waiting=1,
        kv_free=0.5,
        tokens_total=123_456,
        oldest_waiting_ms=250.5,
    ),
    "inference.EngineSpec": inference.EngineSpec(
        replica_id=REPLICA,
        generation=4,
        served_name="chat",
        model_path="/srv/model",
        format="gguf",
        device_kind="cpu",
        device_uuid="CPU-1",
        memory_bytes=4_294_967_296,
        token="a replica's token",
        address_file="/run/address",
        config=CONFIG,
        host="0.0.0.0",
        port=8_200,
        advertise_host="10.0.0.7",
        world=WORLD,
        rank_address="10.1.0.7",
    ),
    "inference.EngineState": inference.EngineState(
        replica_id=REPLICA,
        generation=4,
        phase=reports.Phase.READY,
        reason="Answered",
        message="A real inference passed.",
        progress=1.0,
        max_model_len=4_096,
        ledger=LEDGER,
        stats=STATS,
    ),
    "inference.Usage": inference.Usage(prompt_tokens=10, cached_tokens=4, completion_tokens=20),
    "joining.Hint": joining.Hint(topic="routes", generation=12),
    "joining.JoinReply": joining.JoinReply(id=NODE, credential="a credential"),
    "joining.JoinRequest": joining.JoinRequest(
        token="a join token", name="mill-1", machine_id="m-1", version="0.1.0", protocol=PROTOCOL
    ),
    "memory.MemoryLedger": LEDGER,
    "memory.Watermarks": WATERMARKS,
    "reports.EngineStats": STATS,
    "reports.NodeReport": reports.NodeReport(
        agent_version="0.1.0",
        boot_id="boot-1",
        agent_id="agent-1",
        sequence=99,
        data_address="10.0.0.7",
        applied_generation=12,
        host=HOST,
        devices=[DEVICE_REPORT],
        replicas=[REPLICA_REPORT],
        stored_sha256=[SHA],
        health=[HEALTH],
        health_dropped=3,
        layouts=[LAYOUT_REPORT],
        rank_address="10.1.0.7",
        protocol=PROTOCOL,
    ),
    "reports.ReplicaReport": REPLICA_REPORT,
    "reports.ReportReply": reports.ReportReply(generation=12, interval_seconds=2.0, lease_seconds=20.0),
    "routes.AdaptiveLimit": ADAPTIVE,
    "routes.Budget": BUDGET,
    "routes.Ejection": EJECTION,
    "routes.EndpointEntry": ENDPOINT_ENTRY,
    "routes.GatewayReply": routes.GatewayReply(generation=12, interval_seconds=2.0),
    "routes.GatewayReport": routes.GatewayReport(
        gateway_id=GATEWAY,
        version="0.1.0",
        url="http://127.0.0.1:8101",
        applied_generation=12,
        table_age_seconds=1.5,
        in_flight=3,
        journal_pending=4,
        limits_shared=False,
        ejected=[EJECTION],
        adaptive=[ADAPTIVE],
        protocol=PROTOCOL,
    ),
    "routes.KeyEntry": KEY_ENTRY,
    "routes.RateLimits": LIMITS,
    "routes.ReplicaRoute": ROUTE,
    "routes.RouteTable": routes.RouteTable(
        generation=12,
        issued_at=1_764_000_000.0,
        key_pepper=SHA,
        console_origins=["http://127.0.0.1:8100"],
        tenants=[TENANT_ENTRY],
        keys=[KEY_ENTRY],
        endpoints=[ENDPOINT_ENTRY],
        protocol=PROTOCOL,
    ),
    "routes.Slo": SLO,
    "routes.TenantEntry": TENANT_ENTRY,
    "routes.TokenPrice": PRICE,
    "routes.Variant": VARIANT,
    "usage.UsageBatch": usage.UsageBatch(gateway_id=GATEWAY, records=[USAGE_RECORD], protocol=PROTOCOL),
    "usage.UsageRecord": USAGE_RECORD,
    "usage.UsageReply": usage.UsageReply(accepted=5, duplicates=1),
    "version.ProtocolVersion": PROTOCOL,
}


def smallest(name: str) -> msgspec.Struct:
    """The full sample with every optional field left at its default."""
    full = FULL[name]
    required = {field.name for field in msgspec.structs.fields(full) if field.required}
    return type(full)(**{field: getattr(full, field) for field in required})
