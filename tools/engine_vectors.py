"""Run vLLM's own default functions of every wheel on stand-in objects; print what they return as test
vectors.

python tools/engine_vectors.py WHEELS... > tests/data/engine/vectors.json

The functions (batch sizes, capture sizes, model length, model runner) are cut out of the wheels and run
alone, without torch. `tests/engine/test_against_vllm_functions.py` holds our defaults equal to them.
"""

from __future__ import annotations

import ast
import copy
import itertools
import json
import sys
from enum import Enum
from functools import cache
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

from wheel_source import WheelSource, find_wheels

GIB = 1 << 30
DEVICES = {
    "B200": (180 * GIB, "NVIDIA B200", (10, 0)), "H200": (140 * GIB, "NVIDIA H200", (9, 0)),
    "A100": (80 * GIB, "NVIDIA A100-SXM4-80GB", (8, 0)), "L4": (23 * GIB, "NVIDIA L4", (8, 9)),
    "GB10": (120 * GIB, "NVIDIA GB10", (12, 1)),
}  # fmt: skip


class Usage(str):
    value = property(str)


class Quiet:
    def __getattr__(self, _: str) -> Any:
        return lambda *args, **kwargs: None


class Graphs(Enum):
    NONE, PIECEWISE, FULL = 0, 1, 2
    FULL_DECODE_ONLY, FULL_AND_PIECEWISE = (2, 0), (2, 1)

    def has_full_cudagraphs(self) -> bool:
        return self.value == 2 or (isinstance(self.value, tuple) and 2 in self.value)


def function(wheel: WheelSource, file: str, name: str, scope: dict[str, Any]) -> Any:
    """The named function of the wheel, compiled alone in `scope`; None where the wheel does not have it."""
    code = _code(wheel, file, name)
    if code is None:
        return None
    exec(code, scope)
    return scope[name.rpartition(".")[2]]


@cache
def _code(wheel: WheelSource, file: str, name: str) -> CodeType | None:
    node = copy.deepcopy(wheel.find(file, name))
    if node is None:
        return None
    assert isinstance(node, ast.FunctionDef)
    node.decorator_list = []
    node.returns = None
    for argument in [*node.args.args, *node.args.kwonlyargs]:
        argument.annotation = None
    module = ast.fix_missing_locations(ast.Module([_without_imports(node)], []))
    return compile(module, f"{wheel.version}/{file}", "exec")


def _without_imports(node: ast.FunctionDef) -> ast.FunctionDef:
    class Cut(ast.NodeTransformer):
        def visit_ImportFrom(self, _: ast.ImportFrom) -> ast.Pass:
            return ast.Pass()

        visit_Import = visit_ImportFrom  # noqa: N815

        def visit_AnnAssign(self, n: ast.AnnAssign) -> ast.AST:
            return ast.Pass() if n.value is None else ast.Assign([n.target], n.value)

    return Cut().visit(node)  # type: ignore[no-any-return]


def platform(device: str) -> SimpleNamespace:
    memory, name, capability = DEVICES[device]
    return SimpleNamespace(
        get_device_total_memory=lambda: memory, get_device_name=lambda: name, is_tpu=lambda: False,
        is_cpu=lambda: False, is_rocm=lambda: False, is_unspecified=lambda: False,
        is_device_capability=lambda c: tuple(c) == capability,
        is_device_capability_family=lambda f: f // 10 == capability[0],
        check_max_model_len=lambda n: n, get_cpu_architecture=lambda: None,
    )  # fmt: skip


# -- batch sizes ---------------------------------------------------------------------------------------------


def batch_vectors(wheel: WheelSource) -> list[list[Any]]:
    usage = SimpleNamespace(LLM_CLASS=Usage("offline"), OPENAI_API_SERVER=Usage("server"))
    rows = []
    for device, use, mode, length, chunked, batched, tokens, seqs in itertools.product(
        DEVICES, ("server", "offline"), (None, "throughput"), (4, 4096, 131072), (True, False), (False, True),
        (None, 1000), (None, 64),
    ):  # fmt: skip
        scope = {
            "current_platform": platform(device), "GiB_bytes": GIB, "UsageContext": usage, "logger": Quiet(),
            "SchedulerConfig": SimpleNamespace(
                DEFAULT_MAX_NUM_BATCHED_TOKENS=2048, DEFAULT_MAX_NUM_SEQS=128,
                DEFAULT_MAX_NUM_BATCHED_TOKENS_FOR_BATCHED_DP=256),
        }  # fmt: skip
        file = "engine/arg_utils.py"
        defaults = function(wheel, file, "EngineArgs.get_batch_defaults", scope)
        settle = function(wheel, file, "EngineArgs._set_default_max_num_seqs_and_batched_tokens_args", scope)
        args = SimpleNamespace(
            max_num_batched_tokens=tokens, max_num_seqs=seqs, performance_mode=mode or "balanced",
            enable_chunked_prefill=chunked, pipeline_parallel_size=1, tensor_parallel_size=1,
            get_batch_defaults=lambda world, f=defaults: f(None, world),
        )  # fmt: skip
        model = SimpleNamespace(max_model_len=length, is_multimodal_model=False, is_mm_prefix_lm=False)
        parallel = SimpleNamespace(use_batched_dp_moe=batched)
        extra = (parallel,) if settle.__code__.co_argcount == 4 else ()
        settle(args, Usage(use), model, *extra)
        result = [args.max_num_batched_tokens, args.max_num_seqs]
        rows.append([device, use, mode, length, chunked, batched, tokens, seqs, result])
    return rows


# -- capture sizes -------------------------------------------------------------------------------------------


def size_vectors(wheel: WheelSource) -> list[list[Any]]:
    rows = []
    for device, (seqs, tokens), spec, mode, largest, sizes in itertools.product(
        ("H200", "B200"),
        (
            (1024, 8192),
            (256, 8192),
            (128, 8192),
            (64, 8192),
            (1, 8192),
            (48, 100),
            (513, 513),
            (7, 7),
            (7, 8192),
            (100, 8192),
            (300, 8192),
        ),
        (0, 2, 3, 5),
        ("balanced", "interactivity"),
        (None, 1024, 100),
        (None, [1, 8, 8, 9000]),
    ):
        if largest is not None and sizes is not None:
            continue
        scope = {"CUDAGraphMode": Graphs, "logger": Quiet(), "current_platform": platform(device)}
        settle = function(wheel, "config/vllm.py", "VllmConfig._set_cudagraph_sizes", scope)
        speculation = SimpleNamespace(
            num_speculative_tokens=spec, uses_dynamic_speculative_decoding=lambda: False
        )
        config = SimpleNamespace(
            model_config=SimpleNamespace(enforce_eager=False),
            compilation_config=SimpleNamespace(
                cudagraph_mode=Graphs.FULL_AND_PIECEWISE, max_cudagraph_capture_size=largest,
                cudagraph_capture_sizes=sizes, pass_config=SimpleNamespace(enable_sp=False),
                post_init_cudagraph_sizes=lambda: None),
            scheduler_config=SimpleNamespace(max_num_seqs=seqs, max_num_batched_tokens=tokens),
            parallel_config=SimpleNamespace(tensor_parallel_size=1), performance_mode=mode,
            speculative_config=speculation if spec else None, num_speculative_tokens=spec,
            uniform_decode_query_len=1 + spec,
        )  # fmt: skip
        settle(config)
        found = config.compilation_config.cudagraph_capture_sizes
        rows.append([device, seqs, tokens, spec, mode, largest, sizes, found])
    return rows


# -- model length --------------------------------------------------------------------------------------------

CONFIGS: tuple[dict[str, Any], ...] = (
    {},
    {"max_position_embeddings": 4096},
    {"max_position_embeddings": 8192, "model_max_length": 131072},
    {"n_positions": 2048, "max_position_embeddings": 1024},
    {"max_position_embeddings": 32768, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    {"max_position_embeddings": 131072, "rope_parameters": {"rope_type": "llama3", "factor": 8.0}},
    {"max_position_embeddings": 4096, "rope_parameters": {"rope_type": "linear", "factor": 4}},
    {"max_position_embeddings": 4096, "rope_parameters": {"rope_type": "dynamic", "factor": 2.5}},
    {"max_position_embeddings": 163840,
     "rope_parameters": {"rope_type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}},
    {"max_position_embeddings": 32768,
     "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}},
    {"max_position_embeddings": 131072, "original_max_position_embeddings": 4096,
     "rope_parameters": {"rope_type": "longrope", "factor": 32.0}},
    {"max_position_embeddings": 131072, "model_type": "gemma3_text",
     "rope_parameters": {"rope_type": "linear", "factor": 8.0}},
    {"max_position_embeddings": 65536, "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 2.0},
        "sliding_attention": {"rope_type": "default"}}},
)  # fmt: skip


def length_vectors(wheel: WheelSource) -> list[list[Any]]:
    rows = []
    for config, asked, disable, window, allow in itertools.product(
        CONFIGS, (None, -1, 100, 100_000_000), (False, True), (None, 1024), (False, True)
    ):
        if (disable or window) and config not in CONFIGS[1:5]:
            continue
        hf = SimpleNamespace(**{"model_type": "llama", **config})
        scope: dict[str, Any] = {
            "logger": Quiet(), "current_platform": platform("H200"), "is_rope_parameters_nested": _nested,
            "iter_rope_parameters": _parameters, "envs": SimpleNamespace(VLLM_ALLOW_LONG_MAX_MODEL_LEN=allow),
        }  # fmt: skip
        name = "ModelArchConfigConvertorBase.derive_max_model_len_and_key"
        derive = function(wheel, "transformers_utils/model_arch_config_convertor.py", name, scope)
        check = function(wheel, "config/model.py", "_get_and_verify_max_len", scope)
        arch = SimpleNamespace(derived_max_model_len_and_key=derive(SimpleNamespace(hf_text_config=hf)))
        try:
            result: Any = check(hf, arch, None, asked, disable, window)
        except ValueError as error:
            result = str(error)
        rows.append([config, asked, disable, window, allow, result])
    return rows


def _nested(parameters: Any) -> bool:
    return bool(parameters) and set(parameters) <= {"full_attention", "sliding_attention"}


def _parameters(config: Any) -> Any:
    given = getattr(config, "rope_parameters", None)
    if isinstance(given, dict):
        yield from given.values() if _nested(given) else [given]


# -- model runner --------------------------------------------------------------------------------------------

MODELS: tuple[dict[str, Any], ...] = (
    {"arch": "Qwen3ForCausalLM"},
    {"arch": "LlamaForCausalLM"},
    {"arch": "Qwen2ForCausalLM"},
    {"arch": "LlamaForCausalLM", "quantised": True},
    {"arch": "Qwen3MoeForCausalLM", "moe": True},
    {"arch": "DeepseekV2ForCausalLM", "moe": True, "mla": True},
    {"arch": "DeepseekV3ForCausalLM", "moe": True, "mla": True},
    {"arch": "GraniteMoeForCausalLM", "moe": True},
    {"arch": "Qwen3NextForCausalLM", "moe": True, "hybrid": True},
    {"arch": "Lfm2ForCausalLM", "hybrid": True},
    {"arch": "MambaForCausalLM", "free": True},
    {"arch": "Qwen3Model", "pooling": True},
    {"arch": "Gemma3ForConditionalGeneration", "mm": True},
    {"arch": "DeepseekV4ForCausalLM", "moe": True, "mla": True},
    {"arch": "KimiK3ForConditionalGeneration", "moe": True},
)
FEATURES: tuple[dict[str, Any], ...] = (
    {},
    {"pcp": 2},
    {"dbo": True},
    {"elastic": True},
    {"routed": True},
    {"embeds": True},
    {"fast": True},
    {"ec": True},
    {"logprobs": "raw_logits"},
    {"processors": True},
    {"stock": True},
    {"external": True, "pp": 2},
    {"mamba": "align"},
    {"mamba": "all"},
    *(
        {"method": m}
        for m in (
            "eagle",
            "eagle3",
            "mtp",
            "ngram",
            "ngram_gpu",
            "dflash",
            "dspark",
            "draft_model",
            "suffix",
            "medusa",
            "extract_hidden_states",
        )
    ),
    {"method": "eagle3", "pp": 2},
    {"method": "eagle", "parallel_drafting": True},
)


def runner_vectors(wheel: WheelSource) -> list[list[Any]]:
    if wheel.find("config/vllm.py", "VllmConfig.use_v2_model_runner") is None:
        return []
    rows = []
    for model, feature in itertools.product(MODELS, FEATURES):
        if feature.get("mamba") and not (model.get("hybrid") or model.get("free")):
            continue
        rows.append([model, feature, _runs_on_v2(wheel, model, feature)])
    return rows


def _runs_on_v2(wheel: WheelSource, model: dict[str, Any], feature: dict[str, Any]) -> bool:
    method = feature.get("method")
    speculation = SimpleNamespace(
        method=method,
        parallel_drafting=feature.get("parallel_drafting", False) or method in ("dflash", "dspark"),
        uses_dynamic_speculative_decoding=lambda: False,
        enable_adaptive_verification=False,
        use_heterogeneous_vocab=False,
        draft_model_config=None,
    )
    scope: dict[str, Any] = {
        "envs": SimpleNamespace(VLLM_USE_V2_MODEL_RUNNER=None), "HAS_TRITON": True, "logger": Quiet(),
        "current_platform": platform("H200"), "entry_points": lambda group: (), "CUDAGraphMode": Graphs,
        "CompilationMode": SimpleNamespace(STOCK_TORCH_COMPILE="stock"),
    }  # fmt: skip
    for name in ("DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES", "ROCM_DEFAULT_MRV1_ARCHITECTURES"):
        node = wheel.find("config/vllm.py", name)
        if isinstance(node, ast.Assign):
            scope[name] = eval(ast.unparse(node.value))
    scope["default_v2_model_runner_architectures"] = lambda: scope["DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES"]
    pooling, free, hybrid = model.get("pooling"), model.get("free", False), model.get("hybrid", False)
    config = SimpleNamespace(
        model_config=SimpleNamespace(
            architectures=[model["arch"]],
            runner_type="pooling" if pooling else "generate",
            is_moe=model.get("moe", False),
            is_quantized=model.get("quantised", False),
            is_hybrid=hybrid,
            is_attention_free=free,
            has_inner_state=hybrid or free,
            use_mla=model.get("mla", False),
            is_diffusion=False,
            enable_return_routed_experts=feature.get("routed", False),
            logits_processors=feature.get("processors"),
            enable_prompt_embeds=feature.get("embeds", False),
            logprobs_mode=feature.get("logprobs", "raw_logprobs"),
            is_multimodal_model=model.get("mm", False),
            is_encoder_decoder=False,
        ),
        parallel_config=SimpleNamespace(
            prefill_context_parallel_size=feature.get("pcp", 1),
            decode_context_parallel_size=1,
            pipeline_parallel_size=feature.get("pp", 1),
            tensor_parallel_size=1,
            enable_dbo=feature.get("dbo", False),
            use_ubatching=feature.get("dbo", False),
            enable_elastic_ep=feature.get("elastic", False),
            distributed_executor_backend="external_launcher" if feature.get("external") else None,
        ),
        compilation_config=SimpleNamespace(
            mode="stock" if feature.get("stock") else None,
            pass_config=SimpleNamespace(enable_sp=False),
            cudagraph_mode=None,
        ),
        speculative_config=speculation if method else None,
        reasoning_config=None,
        lora_config=None,
        cache_config=SimpleNamespace(
            kv_sharing_fast_prefill=feature.get("fast", False), mamba_cache_mode=feature.get("mamba", "none")
        ),
        ec_transfer_config=object() if feature.get("ec") else None,
        attention_config=SimpleNamespace(hisparse_config=None),
        is_mm_encoder_only=False,
        _dflash_needs_multi_kv_group=lambda: False,
        _is_dflash2_draft=lambda: False,
    )
    for name in (
        "_is_default_v2_model_runner_model",
        "_get_v2_model_runner_unsupported_features",
        "_get_dbo_unsupported_features",
        "_get_v1_model_runner_unsupported_features",
    ):
        found = function(wheel, "config/vllm.py", f"VllmConfig.{name}", scope)
        if found is not None:
            setattr(config, name, lambda f=found: f(config))
    return bool(function(wheel, "config/vllm.py", "VllmConfig.use_v2_model_runner", scope)(config))


def main() -> int:
    kinds = {
        "batch": batch_vectors,
        "sizes": size_vectors,
        "length": length_vectors,
        "runner": runner_vectors,
    }
    result: dict[str, Any] = {"origin": " ".join((__doc__ or "").split())[:200]}
    wheels = sorted(
        find_wheels([Path(p) for p in sys.argv[1:]]), key=lambda w: tuple(map(int, w.version.split(".")))
    )
    for kind, make in kinds.items():
        changes: dict[str, dict[str, Any]] = {}
        inputs, before = [], None
        for wheel in wheels:
            rows = make(wheel)
            if not rows:
                continue
            inputs, answers = [row[:-1] for row in rows], [row[-1] for row in rows]
            changed = {str(i): a for i, a in enumerate(answers) if before is None or a != before[i]}
            if changed:
                changes[wheel.version] = changed
            before = answers
        result[kind] = {"inputs": inputs, "changes": changes}
    json.dump(result, sys.stdout, separators=(",", ":"))
    print()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
