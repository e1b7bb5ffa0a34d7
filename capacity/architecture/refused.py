"""Architecture names that vLLM does not start as a model of their own, and what it says.

Source: `_SPECULATIVE_DECODING_MODELS` and `_raise_for_unsupported`, model_executor/models/registry.py (all releases read);
the assertions at the top of the draft classes, for example llama_eagle3.py:310 and qwen3_dflash.py:742 (0.33.0).
"""

from __future__ import annotations

DRAFTS = frozenset(
    {
        "BailingMoeV25MTPModel", "BailingMoeV3MTPModel", "DFlash2BeamDraftModel", "DFlash2DraftModel", "DFlashDraftModel",
        "DFlashLagunaForCausalLM", "DFlashMuseGlimmerAssistantModel", "DFlashQwen3XPressModel", "DSparkDraftModel",
        "DSparkV41DraftModel", "DeepSeekMTPModel", "DeepSeekV4MTPModel", "DeepseekV32MTPModel", "Dots3NoteMTPModel",
        "Eagle3DeepseekV2ForCausalLM", "Eagle3DeepseekV3ForCausalLM", "Eagle3LlamaForCausalLM",
        "Eagle3MiniMaxM2ForCausalLM", "Eagle3Qwen2_5vlForCausalLM", "Eagle3Qwen3ForCausalLM", "Eagle3Qwen3vlForCausalLM",
        "EagleCohereForCausalLM", "EagleDeepSeekMTPModel", "EagleLlama4ForCausalLM", "EagleLlamaForCausalLM",
        "EagleMiniCPMForCausalLM", "EagleMistralForCausalLM", "EagleMistralLarge3ForCausalLM", "ErnieMTPModel",
        "Exaone4_5_MTP", "ExaoneMoeMTP", "ExtractHiddenStatesModel", "Gemma4DSparkModel", "Gemma4MTPModel",
        "Glm4MoeLiteMTPModel", "Glm4MoeMTPModel", "Glm5NextMTPModel", "GlmOcrMTPModel", "HYV3MTPModel", "HYV4MTPModel",
        "InklingMTPModel", "InternS2MobiusMTP", "K3DSparkModel", "KimiK3MTPModel", "LiLiCorrDraftModel",
        "LlamaForCausalLMEagle3", "LongCatFlashMTPModel", "MedusaModel", "MiMoMTPModel", "MiMoV2MTPModel",
        "MiMoV2OmniMTPModel", "MiniMaxM3MTP", "MuseGlimmerAssistantModel", "MuseSparkDSparkModel", "NemotronHMTPModel",
        "OpenPanguMTPModel", "PEagleDraftModel", "ParseAuxMTPModel", "PeagleLlamaForCausalLM", "PeagleQwen3ForCausalLM",
        "Qwen3DSparkModel", "Qwen3NextMTP", "Qwen3OmniDSparkModel", "Qwen3XPressModel", "Qwen3_5MTP", "Qwen3_5MoeMTP",
        "Qwen4ExpMTP", "Step3p5MTP", "Step5MTP",
    }
)  # fmt: skip
"""Draft models: vLLM has the class, but it asserts a speculative config."""

NEVER = frozenset({"LogicsForConditionalGeneration", "MiniMaxM3ForCausalLM", "Step3p7FlashForCausalLM"})
"""Names in published files that neither a release read nor Transformers has."""


def refusal(name: str, version: str) -> str | None:
    """vLLM's reason why it does not run `name`, or None."""
    if name in DRAFTS:
        return (
            f"AssertionError: speculative_config is not None ({name} is a draft model; give it to the model it drafts for:"
            " --speculative-config '{\"model\": ...}')"
        )
    if name in NEVER:
        return (
            f"Model architectures ['{name}'] are not supported for now (vLLM {version}; no release read has the name, and"
            " Transformers has no such class)"
        )
    return None
