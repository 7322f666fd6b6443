"""Serving configs: an allow-list with bounds."""

from typing import Any

import pytest

from catalog import configs
from kernel import errors
from runtime.wire.assignments import EngineConfig


def test_nothing_said_is_the_engine_s_own_default() -> None:
    settings, engine = configs.normalise({}), EngineConfig()
    assert settings == configs.DEFAULTS
    marks = {"watermark_low": "low", "watermark_high": "high", "watermark_critical": "critical"}
    for name, value in vars(settings).items():
        if name in (*configs.PARTITION, *configs.PARALLEL, *configs.DEVICES):
            assert value in ("any", "", 0, ()), name  # about devices: no engine reads it here
            continue
        want = getattr(engine.watermarks, marks[name]) if name in marks else getattr(engine, name)
        assert value == want, name


def test_equal_settings_have_one_digest_however_they_are_said() -> None:
    one = configs.normalise({"kv_cache_gib": 1, "watermarks": {"low": 0.5}, "dtype": None})
    two = configs.normalise({"watermark_low": 0.5, "kv_cache_bytes": 2**30})
    assert one.digest == two.digest != configs.DEFAULTS.digest


def test_products_are_named_in_a_list_or_in_one_text() -> None:
    named = configs.normalise({"products": [" L40S", "NVIDIA  H100", "L40S"]})
    assert named.products == ("L40S", "NVIDIA H100")
    assert configs.normalise({"products": "NVIDIA H100, L40S,"}).digest == named.digest != configs.DEFAULTS.digest
    assert configs.normalise({"products": 4090}).products == ("4090",)
    assert configs.normalise({"products": ""}).digest == configs.DEFAULTS.digest


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"trust_remote_code": True}, "trust_remote_code"),
        ({"engine": "vllm"}, "engine"),
        ({"dtype": "int3"}, "dtype"),
        ({"dtype": ["float32"]}, "dtype"),
        ({"quantization": "awq"}, "quantization"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"isolation": "steel"}, "isolation"),
        ({"products": {"H100": 1}}, "products"),
        ({"products": [1]}, "products"),
        ({"products": True}, "products"),
        ({"products": 0}, "products"),
        ({"product": "H100"}, "product"),
        ({"products": ["x" * 81]}, "products"),
        ({"products": ["H\u0000"]}, "products"),
        ({"products": [f"H{n}" for n in range(17)]}, "products"),
        ({"mig_profile": "big"}, "mig_profile"),
        ({"mig_profile": "3g.40gb", "isolation": "exclusive"}, "mig_profile"),
        ({"thread_percentage": 101, "isolation": "mps"}, "thread_percentage"),
        ({"thread_percentage": 30}, "thread_percentage"),
        ({"memory_limit_gib": 1, "memory_limit_bytes": 5}, "memory_limit_gib"),
        ({"max_num_seqs": True}, "max_num_seqs"),
        ({"max_num_seqs": 1.5}, "max_num_seqs"),
        ({"max_num_seqs": "8"}, "max_num_seqs"),
        ({"max_num_batched_tokens": 10**9}, "max_num_batched_tokens"),
        ({"max_model_len": -1}, "max_model_len"),
        ({"kv_block_tokens": 17}, "kv_block_tokens"),
        ({"kv_cache_bytes": 2**60}, "kv_cache_bytes"),
        ({"kv_cache_gib": float("nan")}, "kv_cache_gib"),
        ({"kv_cache_gib": 1, "kv_cache_bytes": 1}, "kv_cache_gib"),
        ({"enable_prefix_cache": 1}, "enable_prefix_cache"),
        ({"watermarks": {"low": 0.9, "high": 0.8}}, "watermarks"),
        ({"watermarks": {"lowest": 0.9}}, "watermarks"),
        ({"watermark_low": 0}, "watermark_low"),
        ({"tenant_kv_share": 0}, "tenant_kv_share"),
        ({"tenant_kv_share": 1.1}, "tenant_kv_share"),
        ({"queue_timeout_seconds": -1}, "queue_timeout_seconds"),
        ({"sleep_after_seconds": -1}, "sleep_after_seconds"),
        ({"sleep_after_seconds": "1"}, "sleep_after_seconds"),
        ({"queue_timeout_seconds": float("inf")}, "queue_timeout_seconds"),
    ],
)
def test_what_is_not_allowed_is_named(config: dict[str, Any], field: str) -> None:
    with pytest.raises(errors.InvalidInput) as refusal:
        configs.normalise(config)
    assert (refusal.value.code, refusal.value.data["field"]) == ("invalid_config", field)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"product": "H100"}, "There is no setting 'product'. Did you mean 'products'?"),
        ({"kv_cache_gb": 4}, "There is no setting 'kv_cache_gb'. Did you mean 'kv_cache_gib'?"),
        ({"products": ["H100\u200b"]}, "A name in products has a character that cannot be seen"),
    ],
)
def test_a_refusal_says_what_would_do(config: dict[str, Any], told: str) -> None:
    with pytest.raises(errors.InvalidInput) as refusal:
        configs.normalise(config)
    assert refusal.value.detail.startswith(told)
