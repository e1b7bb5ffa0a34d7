"""Next-token layers (MTP): which models have them for vLLM, and in which layouts.

Source: `SpeculativeConfig.hf_config_override`, `__post_init__` and `_verify_args`, config/speculative.py; the classes of
model_executor/models/*_mtp.py (0.22.0, 0.26.0 to 0.33.0).
"""

from __future__ import annotations

from vllm_capacity.engine_defaults.facts import refuse
from vllm_capacity.engine_defaults.speculation import Speculation
from vllm_capacity.errors import Reason
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release

WITH_MTP = (
    "bailing", "deepseek_mtp", "deepseek_v3", "deepseek_v4", "dots3", "ernie4_5_moe", "exaone4_5", "exaone_moe",
    "gemma4_assistant", "gemma4_unified_assistant", "glm4_moe", "glm4v_moe", "glm5_next", "glm_moe_dsa", "glm_ocr", "hy_v3",
    "hy_v4", "inkling", "intern_s2", "kimi_k3", "longcat_flash", "mimo", "minimax_m3", "nemotron_h", "pangu_ultra_moe",
    "qwen3_5", "qwen3_next", "qwen4", "step3p5", "step3p7", "step5",
)  # fmt: skip
"""Beginnings of the model types that any release read rewrites into a draft of their own."""
STAGED = ("glm4_moe_lite", "glm_ocr", "nemotron_h")
"""Model types whose draft class derives from SupportsPP in every release read."""
STAGED_SINCE = {"mtp_in_stages": ("deepseek_v3", "glm_moe_dsa", "qwen3_5")}
"""Feature -> model types whose draft class does so from then on."""


def check_next_token(speculation: Speculation, config: ModelConfig, release: Release, *, stages: int) -> None:
    """Raises RefusedError where vLLM does not draft with the model's own next-token layers."""
    if speculation.method != "mtp" or speculation.values.get("model"):
        return
    types = {config.model_type, config.text_model_type}
    has_some = any(kind.startswith(WITH_MTP) for kind in types)
    if "nemotron_h" in types and not config.get("num_nextn_predict_layers"):
        has_some = False
    if not has_some:
        raise refuse("Unsupported speculative method: 'mtp'")
    if stages == 1:
        return
    later = (kinds for feature, kinds in STAGED_SINCE.items() if release.has(feature))
    staged = (*STAGED, *(kind for kinds in later for kind in kinds))
    if not any(kind.startswith(staged) for kind in types):
        raise refuse(
            "Pipeline parallelism is not supported for this model. Supported models implement the `SupportsPP` interface."
            f" (the next-token layers of {config.name})",
            Reason.INVALID_LAYOUT,
        )
