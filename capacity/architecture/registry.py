"""Hugging Face architecture names -> builders of `Architecture`, with the releases that run them.

One row per name and range of releases. A family adds its rows to `ROWS`; its module is imported only when it
is asked for. `since`/`until` are the first and last release whose model_executor/models/registry.py lists the
name (None: open).
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import cast

from vllm_capacity.architecture.adapters import as_pooling_model
from vllm_capacity.architecture.modules import Architecture
from vllm_capacity.architecture.refused import refusal
from vllm_capacity.errors import InputError, Reason, RefusedError
from vllm_capacity.frozen import dataclass
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release, version_key

Builder = Callable[[ModelConfig, Release], Architecture]


@dataclass(frozen=True, slots=True)
class Row:
    """`builder`: "module:function" below this package; empty: vLLM has the class, we do not model it."""

    builder: str
    since: str | None = None
    until: str | None = None

    def covers(self, release: Release) -> bool:
        key = release.key
        return (self.since is None or version_key(self.since) <= key) and (
            self.until is None or key <= version_key(self.until)
        )


def _rows(
    builder: str, *names: str, since: str | None = None, until: str | None = None
) -> dict[str, tuple[Row, ...]]:
    return dict.fromkeys(names, (Row(builder, since, until),))


def _ranges(name: str, *ranges: tuple[str, str | None, str | None]) -> dict[str, tuple[Row, ...]]:
    """Rows of one name that releases run with different classes: (builder, since, until)."""
    return {name: tuple(Row(*each) for each in ranges)}


ROWS: dict[str, tuple[Row, ...]] = {
    # models/llama.py
    **_rows(
        "llama:llama",
        "LlamaForCausalLM",
        "LLaMAForCausalLM",
        "InternLM3ForCausalLM",
        "IQuestCoderForCausalLM",
    ),
    **_ranges(
        "CwmForCausalLM", ("llama:llama", None, "0.31.0"), ("transformers_backend:llama", "0.32.0", None)
    ),
    **_rows("llama:llama", "TeleChat3ForCausalLM", since="0.20.0"),
    **_rows("llama:llama", "InternLMForCausalLM", "XverseForCausalLM", until="0.23.0"),
    **_rows("llama:llama", "AquilaModel", "AquilaForCausalLM", until="0.24.0"),
    # models/mistral.py
    **_rows("mistral:mistral", "MistralForCausalLM"),
    **_rows("mistral:mistral", "Ministral3ForCausalLM", since="0.20.0"),
    # models/qwen2.py, qwen3.py, qwen3_moe.py
    **_rows("qwen2:qwen2", "Qwen2ForCausalLM"),
    **_rows("qwen3:qwen3", "Qwen3ForCausalLM"),
    **_rows("qwen3_moe:qwen3_moe", "Qwen3MoeForCausalLM"),
    **_rows("mixtral:mixtral", "MixtralForCausalLM"),
    **_rows("qwen2_moe:qwen2_moe", "Qwen2MoeForCausalLM"),
    **_rows("gemma:gemma", "GemmaForCausalLM"),
    **_rows("gemma:gemma2", "Gemma2ForCausalLM"),
    **_rows("gemma:gemma3", "Gemma3ForCausalLM"),
    **_rows("gemma3n:gemma3n", "Gemma3nForCausalLM"),
    **_rows("gemma3n:gemma3n_multimodal", "Gemma3nForConditionalGeneration"),
    **_rows("gemma4:gemma4", "Gemma4ForCausalLM"),
    **_rows("phi:phi3", "Phi3ForCausalLM"),
    **_ranges("PhiForCausalLM", ("phi:phi", None, "0.31.0"), ("transformers_backend:phi", "0.32.0", None)),
    **_ranges("GlmForCausalLM", ("glm:glm", None, "0.31.0"), ("transformers_backend:glm", "0.32.0", None)),
    **_rows("glm:glm4", "Glm4ForCausalLM"),
    **_rows("glm4_moe:glm4_moe", "Glm4MoeForCausalLM"),
    **_rows("deepseek:deepseek", "DeepseekForCausalLM"),
    **_rows("deepseek:deepseek_v2", "DeepseekV2ForCausalLM"),
    **_rows("deepseek:deepseek_v3", "DeepseekV3ForCausalLM"),
    **_ranges(
        "DeepseekV32ForCausalLM",
        ("deepseek:deepseek_v3", None, "0.28.0"),
        ("deepseek:deepseek_v32", "0.29.0", None),
    ),
    **_rows("deepseek_v4:deepseek_v4", "DeepseekV4ForCausalLM", since="0.20.0"),
    **_rows("deepseek:glm_moe_dsa", "GlmMoeDsaForCausalLM"),
    **_rows("gpt_oss:gpt_oss", "GptOssForCausalLM"),
    **_rows("qwen3_next:qwen3_next", "Qwen3NextForCausalLM"),
    **_rows("mamba:mamba", "MambaForCausalLM", "FalconMambaForCausalLM"),
    **_rows("mamba:mamba2", "Mamba2ForCausalLM"),
    **_rows("hybrid:granite_hybrid", "GraniteMoeHybridForCausalLM"),
    **_rows("hybrid:jamba", "JambaForCausalLM"),
    **_rows("hybrid:falcon_h1", "FalconH1ForCausalLM"),
    **_rows("nemotron_h:nemotron_h", "NemotronHForCausalLM"),
    **_rows("lfm2:lfm2", "Lfm2ForCausalLM"),
    **_rows("lfm2:lfm2_moe", "Lfm2MoeForCausalLM"),
    **_rows("ernie:ernie45", "Ernie4_5ForCausalLM"),
    **_rows("ernie:ernie45_moe", "Ernie4_5_MoeForCausalLM"),
    **_ranges(
        "SeedOssForCausalLM",
        ("llama_variants:seed_oss", None, "0.31.0"),
        ("transformers_backend:seed_oss", "0.32.0", None),
    ),
    **_rows("llama_variants:exaone4", "Exaone4ForCausalLM"),
    **_rows("phimoe:phimoe", "PhiMoEForCausalLM"),
    **_ranges(
        "KimiK3ForConditionalGeneration", ("", "0.27.0", "0.32.0"), ("kimi_k3:kimi_k3", "0.33.0", None)
    ),
    **_rows("kimi_linear:kimi_linear", "KimiLinearForCausalLM"),
    **_rows("minimax_m3:minimax_m3", "MiniMaxM3SparseForCausalLM", since="0.24.0"),
    **_rows("minimax_m3:minimax_m3_multimodal", "MiniMaxM3SparseForConditionalGeneration", since="0.24.0"),
    **_rows("minimax_m1:minimax_m1", "MiniMaxText01ForCausalLM", "MiniMaxM1ForCausalLM", until="0.23.0"),
    **_rows("minimax_m2:minimax_m2", "MiniMaxM2ForCausalLM"),
    **_rows("mimo:mimo", "MiMoForCausalLM"),
    **_rows("mimo:mimo_v2", "MiMoV2FlashForCausalLM"),
    **_rows("mimo:mimo_v2", "MiMoV2ForCausalLM", since="0.21.0"),
    **_rows("qwen3_next:qwen3_5", "Qwen3_5ForCausalLM", since="0.27.0"),
    **_rows("qwen3_next:qwen3_5_moe", "Qwen3_5MoeForCausalLM", since="0.27.0"),
    **_rows("dbrx:dbrx", "DbrxForCausalLM"),
    **_rows("llama4:llama4", "Llama4ForCausalLM"),
    **_rows("llama4:llama4_multimodal", "Llama4ForConditionalGeneration"),
    **_rows("qwen3_next:qwen3_5_multimodal", "Qwen3_5ForConditionalGeneration"),
    **_rows("qwen3_next:qwen3_5_moe_multimodal", "Qwen3_5MoeForConditionalGeneration"),
    **_rows("gemma:gemma3_multimodal", "Gemma3ForConditionalGeneration"),
    **_rows("vision_language:qwen3_vl", "Qwen3VLForConditionalGeneration"),
    **_rows("vision_language:qwen3_vl_moe", "Qwen3VLMoeForConditionalGeneration"),
    **_rows("vision_language:qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration"),
    # names that vLLM's registry gives to the generator's class: without a pooling config beside the model they run as
    # generators (config/model.py: _get_default_runner_type); --runner pooling makes pooling models of them
    **_rows("llama:llama", "LlamaModel", "MistralModel"),
    **_rows("qwen2:qwen2", "Qwen2Model"),
    **_rows("gemma:gemma2", "Gemma2Model"),
    **_rows("bert:bert_embedding", "BertModel"),
    **_rows("bert:bert_classifier", "BertForSequenceClassification"),
    **_rows("bert:roberta_embedding", "RobertaModel", "RobertaForMaskedLM", "XLMRobertaModel"),
    **_rows(
        "bert:roberta_classifier", "RobertaForSequenceClassification", "XLMRobertaForSequenceClassification"
    ),
    **_rows("whisper:whisper", "WhisperForConditionalGeneration"),
    **_rows("step3:step3_text", "Step3TextForCausalLM"),
    **_rows("step3:step3_vl", "Step3VLForConditionalGeneration"),
    **_rows("qwen:qwen", "QWenLMHeadModel", until="0.23.0"),
    **_rows("openpangu:pangu_embedded", "PanguEmbeddedForCausalLM"),
    **_rows("classics:gpt2", "GPT2LMHeadModel"),
    **_rows("classics:gpt_j", "GPTJForCausalLM"),
    **_ranges("GPTNeoXForCausalLM", ("classics:gpt_neox", None, "0.31.0"), ("", "0.32.0", None)),
    **_rows("classics:opt", "OPTForCausalLM"),
    **_rows("classics:bloom", "BloomForCausalLM"),
    **_rows("classics:stablelm", "StableLmForCausalLM"),
    **_rows("classics:stablelm", "StableLMEpochForCausalLM", until="0.28.0"),
    **_rows("classics:nemotron", "NemotronForCausalLM"),
    **_rows("olmoe:olmoe", "OlmoeForCausalLM"),
    **_rows("olmoe:apertus", "ApertusForCausalLM"),
    **_rows("older_vision:phi3_v", "Phi3VForCausalLM"),
    **_rows("older_vision:molmo", "MolmoForCausalLM"),
    **_rows("minicpmv:minicpm_v", "MiniCPMV"),
    **_rows("vision_language:qwen2_vl", "Qwen2VLForConditionalGeneration"),
    **_rows("vision_language:mistral3", "Mistral3ForConditionalGeneration"),
    **_rows("vision_language:gemma4_multimodal", "Gemma4ForConditionalGeneration"),
    **_rows("vision_language:kimi_k25", "KimiK25ForConditionalGeneration"),
    **_rows("vision_language:glm4v_moe", "Glm4vMoeForConditionalGeneration"),
    **_rows("decilm:decilm", "DeciLMForCausalLM"),
    **_rows("deepseek:glm4_moe_lite", "Glm4MoeLiteForCausalLM"),
    **_rows("step3p5:step3p5", "Step3p5ForCausalLM"),
    **_rows("bailing:bailing_moe", "BailingMoeForCausalLM", "BailingMoeV2ForCausalLM"),
    **_ranges(
        "Olmo3ForCausalLM",
        ("olmo:olmo2", None, "0.25.1"),
        ("olmo:olmo3", "0.26.0", "0.28.0"),
        ("transformers_backend:olmo3", "0.29.0", None),
    ),
    **_ranges(
        "Olmo2ForCausalLM", ("olmo:olmo2", None, "0.25.1"), ("transformers_backend:olmo2", "0.26.0", None)
    ),
    **_ranges("OlmoForCausalLM", ("", None, "0.25.1"), ("transformers_backend:olmo", "0.26.0", None)),
    **_rows("transformers_backend:smollm3", "SmolLM3ForCausalLM"),
    **_ranges(
        "Starcoder2ForCausalLM",
        ("starcoder2:starcoder2", None, "0.24.0"),
        ("transformers_backend:starcoder2", "0.25.0", None),
    ),
    **_ranges(
        "ArceeForCausalLM", ("arcee:arcee", None, "0.31.0"), ("transformers_backend:arcee", "0.32.0", None)
    ),
    **_ranges(
        "HunYuanDenseV1ForCausalLM",
        ("hunyuan:hunyuan_dense", None, "0.28.0"),
        ("transformers_backend:hunyuan_dense", "0.29.0", None),
    ),
    **_ranges(
        "HunYuanMoEV1ForCausalLM",
        ("hunyuan:hunyuan_moe", None, "0.28.0"),
        ("hunyuan:hunyuan_moe_transformers", "0.29.0", None),
    ),
    **_rows("granite:granite", "GraniteForCausalLM"),
    **_rows("granite:granite_moe", "GraniteMoeForCausalLM"),
    **_rows("granite:granite_moe_shared", "GraniteMoeSharedForCausalLM"),
    **_rows("cohere:cohere", "CohereForCausalLM"),
    **_rows("cohere:cohere2", "Cohere2ForCausalLM"),
    **_rows("falcon:falcon", "FalconForCausalLM"),
    **_rows("internlm2:internlm2", "InternLM2ForCausalLM"),
    **_rows("chatglm:chatglm", "ChatGLMModel", "ChatGLMForConditionalGeneration"),
}
"""Every architecture that can be planned."""

LAST_RELEASE: dict[str, str] = {
    "MotifForCausalLM": "0.10.2",
    "Phi3SmallForCausalLM": "0.9.2",
    "Phi4FlashForCausalLM": "0.10.2",
    "Phi4MultimodalForCausalLM": "0.12.0",
    "JAISLMHeadModel": "0.22.0",
    "ErnieModel": "0.23.0",
    "ErnieForSequenceClassification": "0.23.0",
    "ErnieForTokenClassification": "0.23.0",
    "InternLM2VEForCausalLM": "0.23.0",
    "QWenLMHeadModel": "0.23.0",
    "QwenVLForConditionalGeneration": "0.23.0",
    "InternLMForCausalLM": "0.23.0",
    "DonutForConditionalGeneration": "0.10.2",
    "MllamaForConditionalGeneration": "0.10.2",
    "XverseForCausalLM": "0.23.0",
    "Dots1ForCausalLM": "0.23.0",
    "BambaForCausalLM": "0.23.0",
    "MiniMaxForCausalLM": "0.23.0",
    "MiniMaxText01ForCausalLM": "0.23.0",
    "MiniMaxM1ForCausalLM": "0.23.0",
    "MiniMaxVL01ForConditionalGeneration": "0.23.0",
    "BaiChuanForCausalLM": "0.23.0",
    "BaichuanForCausalLM": "0.23.0",
    "AquilaModel": "0.24.0",
    "AquilaForCausalLM": "0.24.0",
    "Grok1ModelForCausalLM": "0.24.0",
    "Grok1ForCausalLM": "0.24.0",
    "TarsierForConditionalGeneration": "0.24.0",
    "Tarsier2ForConditionalGeneration": "0.23.0",
    "MantisForConditionalGeneration": "0.24.0",
    "MusicFlamingoForConditionalGeneration": "0.24.0",
    "AyaVisionForConditionalGeneration": "0.24.0",
    "TeleChatForCausalLM": "0.25.0",
    "PersimmonForCausalLM": "0.25.0",
    "FuyuForCausalLM": "0.25.0",
    "Plamo2ForCausalLM": "0.26.0",
    "OuroForCausalLM": "0.26.0",
    "ArcticForCausalLM": "0.28.0",
    "ChameleonForConditionalGeneration": "0.28.0",
    "Cheers": "0.28.0",
    "CheersForConditionalGeneration": "0.28.0",
    "Fairseq2LlamaForCausalLM": "0.28.0",
    "FireRedLIDForConditionalGeneration": "0.28.0",
    "GritLM": "0.28.0",
    "HCXVisionForCausalLM": "0.28.0",
    "MPTForCausalLM": "0.28.0",
    "MptForCausalLM": "0.28.0",
    "RWForCausalLM": "0.28.0",
    "StableLMEpochForCausalLM": "0.28.0",
    "PrithviGeoSpatialMAE": "0.28.0",
}
"""Dropped architectures and the last release that vLLM names for them (_PREVIOUSLY_SUPPORTED_MODELS,
registry.py, 0.33.0).
"""

FIRST_RELEASE: dict[str, str] = {}
"""Architectures that are not modelled but that some releases read do not have: their first release."""


def build_architecture(config: ModelConfig, release: Release) -> Architecture:
    """The layers vLLM builds for `config`: the first of its architectures that a family knows.

    Raises RefusedError(UNSUPPORTED_BY_RELEASE) where that release of vLLM refuses the architecture,
    InputError where the architecture is not modelled.
    """
    key = (id(config), release.version)
    found = _BUILT.get(key)
    if found is None:
        if len(_BUILT) >= 64:
            _BUILT.clear()
        # the entry keeps `config` alive, so that its id stays its own
        found = _BUILT[key] = (config, _build(config, release))
    return found[1]


_BUILT: dict[tuple[int, str], tuple[ModelConfig, Architecture]] = {}
"""Architectures by config object and release: sizing asks for the same one thousands of times."""


def _build(config: ModelConfig, release: Release) -> Architecture:
    if not config.architectures:
        raise InputError(
            f"{config.name}: config key 'architectures' is missing or empty; name the model class there, for"
            ' example ["LlamaForCausalLM"] (or pass it with --hf-overrides)'
        )
    for name in config.architectures:
        for row in ROWS.get(name, ()):
            if row.covers(release):
                if not row.builder:
                    raise InputError(_unknown(config, release))
                return _builder(row.builder)(config, release)
    for name in config.architectures:
        converted = _converted(name, config, release)
        if converted is not None:
            return converted
    for name in config.architectures:
        _refuse_if_dropped(name, release)
        refused = refusal(name, release.version)
        if refused is not None:
            raise RefusedError(Reason.UNSUPPORTED_BY_RELEASE, refused)
    raise InputError(_unknown(config, release))


_CONVERSIONS: tuple[tuple[str, bool], ...] = (
    ("ForTextEncoding", False),
    ("EmbeddingModel", False),
    ("ForSequenceClassification", True),
    ("ForRewardModeling", False),
    ("RewardModel", False),
    ("Model", False),
)
"""Suffixes of pooling models that vLLM makes of a generator, and whether it classifies (_SUFFIX_TO_DEFAULTS,
config/model.py:2340-2357, 0.33.0).
"""

_GENERATORS = ("ForCausalLM", "ForConditionalGeneration", "ChatModel", "LMHeadModel")


def _converted(name: str, config: ModelConfig, release: Release) -> Architecture | None:
    """The generator whose name differs only in the suffix, as a pooling model (`_normalize_arch`,
    model_executor/models/registry.py, 0.26.0); None without one.
    """
    match = next(((suffix, classify) for suffix, classify in _CONVERSIONS if name.endswith(suffix)), None)
    if match is None or name in ROWS or name in LAST_RELEASE or refusal(name, release.version) is not None:
        return None
    suffix, classify = match
    for generator in _GENERATORS:
        base = name.removesuffix(suffix) + generator
        for row in ROWS.get(base, ()):
            if row.covers(release) and row.builder:
                return as_pooling_model(_builder(row.builder)(config, release), config, classify=classify)
    return None


def _builder(path: str) -> Builder:
    module, function = path.split(":")
    return cast(Builder, getattr(import_module(f"vllm_capacity.architecture.{module}"), function))


def _refuse_if_dropped(name: str, release: Release) -> None:
    """vLLM's own refusal (`_raise_for_unsupported`, model_executor/models/registry.py:1077-1108, 0.26.0)."""
    rows = ROWS.get(name, ())
    last = LAST_RELEASE.get(name)
    if last is not None and version_key(last) < release.key:
        raise RefusedError(
            Reason.UNSUPPORTED_BY_RELEASE,
            f"Model architecture {name} was supported in vLLM until v{last}, and is not supported anymore"
            f" (vLLM {release.version}); plan it with --vllm-version {last} or older",
        )
    first = FIRST_RELEASE.get(name) or (rows[0].since if rows else None)
    if first is not None and release.key < version_key(first):
        raise RefusedError(
            Reason.UNSUPPORTED_BY_RELEASE,
            f"Model architectures ['{name}'] are not supported for now (vLLM {release.version});"
            f" vLLM {first} is the first release read that has it: --vllm-version {first}",
        )


def _unknown(config: ModelConfig, release: Release) -> str:
    name = config.architectures[0]
    if name in ROWS:
        return (
            f"{config.name}: vLLM {release.version} runs {name!r} with another class than the ones modelled;"
            f" `vllm-capacity dry-run` asks an installed vLLM instead"
        )
    import difflib  # only on the way to an error

    near = difflib.get_close_matches(name, ROWS, n=1, cutoff=0.6)
    nearest = f"; the nearest that is: {near[0]}" if near else ""
    return (
        f"{config.name}: architecture {name!r} is not modelled{nearest}. `vllm-capacity dry-run` asks an"
        " installed vLLM"
        " instead; or open an issue with the model's config.json"
    )
