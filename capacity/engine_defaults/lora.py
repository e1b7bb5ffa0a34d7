"""Whether vLLM takes LoRA adapters: the model's class, and tokens that a batch must have."""

from __future__ import annotations

from vllm_capacity.engine import EngineArgs
from vllm_capacity.engine_defaults.facts import refuse
from vllm_capacity.errors import Reason
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release

WITHOUT_LORA = frozenset(
    {
        "ArcticForCausalLM", "AyaVisionForConditionalGeneration", "BloomForCausalLM", "ChameleonForConditionalGeneration",
        "DbrxForCausalLM", "ErnieForSequenceClassification", "ErnieForTokenClassification", "ErnieModel",
        "FalconForCausalLM", "FalconMambaForCausalLM", "FireRedLIDForConditionalGeneration", "FuyuForCausalLM",
        "GPT2LMHeadModel", "GPTJForCausalLM", "Gemma3nForCausalLM", "Gemma3nForConditionalGeneration",
        "HCXVisionForCausalLM", "JAISLMHeadModel", "KimiK25ForConditionalGeneration", "KimiK3ForConditionalGeneration",
        "KimiLinearForCausalLM", "MPTForCausalLM", "Mamba2ForCausalLM", "MambaForCausalLM", "MiMoV2FlashForCausalLM",
        "MiMoV2ForCausalLM", "MiniMaxForCausalLM", "MiniMaxM1ForCausalLM", "MiniMaxM3SparseForCausalLM",
        "MiniMaxM3SparseForConditionalGeneration", "MiniMaxText01ForCausalLM", "MiniMaxVL01ForConditionalGeneration",
        "MptForCausalLM", "PersimmonForCausalLM", "Phi3VForCausalLM", "RWForCausalLM", "StableLMEpochForCausalLM",
        "StableLmForCausalLM", "Step3TextForCausalLM", "Step3VLForConditionalGeneration", "Step3p5ForCausalLM",
        "TarsierForConditionalGeneration",
    }
)  # fmt: skip
"""Architectures whose class does not derive from SupportsLoRA in any release read (model_executor/models, 0.22.0 and
0.26.0 to 0.33.0).
"""
WITH_LORA_SINCE: dict[str, frozenset[str]] = {
    "lora_for_deepseek_v4": frozenset({"DeepseekV4ForCausalLM"}),
    "lora_for_roberta_classifiers": frozenset(
        {"RobertaForSequenceClassification", "XLMRobertaForSequenceClassification"}
    ),
    "lora_for_bert": frozenset(
        {"BertModel", "GPTNeoXForCausalLM", "RobertaForMaskedLM", "RobertaModel", "XLMRobertaModel"}
    ),
    "lora_for_bert_classifiers": frozenset({"BertForSequenceClassification"}),
}
"""Feature -> architectures that take adapters from then on."""


def check_lora(
    args: EngineArgs, config: ModelConfig, release: Release, *, tokens: int, seqs: int, speculative: int
) -> None:
    """`LoRAConfig.verify_with_model_config`, config/lora.py (0.33.0), `load_lora_model`,
    v1/worker/lora_model_runner_mixin.py (before); `create_engine_config`, engine/arg_utils.py:2196-2204 (0.26.0).

    Raises RefusedError.
    """
    if not args.other("enable_lora"):
        return
    if speculative and tokens < seqs * (speculative + 1):
        raise refuse("Consider increasing max_num_batched_tokens or decreasing num_speculative_tokens")
    name = config.architectures[0] if config.architectures else ""
    later = (names for feature, names in WITH_LORA_SINCE.items() if not release.has(feature))
    if name in WITHOUT_LORA or any(name in names for names in later):
        raise refuse(
            f"LoRA is not supported for {name} ({config.name}). Supported models implement the `SupportsLoRA`"
            " interface. Run this model without `enable_lora`."
            if release.has("lora_checked_by_config")
            else f"{name} does not support LoRA yet.",
            Reason.UNSUPPORTED_BY_RELEASE,
        )
