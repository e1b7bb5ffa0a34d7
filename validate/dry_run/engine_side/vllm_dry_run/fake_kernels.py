"""Kernel libraries that compile or query a GPU when they are first used, and the host side around weights.

Kernels here write into tensors that exist already; where one returns a new tensor, its size is what the library makes.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from .tensor_ledger import TensorLedger


def install(ledger: TensorLedger) -> list[str]:
    """After `import vllm`; returns which libraries could not be prepared (their kernels would fail when called). Calls that
    are left out are noted in the ledger.
    """
    _no_pinning()
    _no_dummy_values()
    failed = []
    libraries = {
        "deep_gemm": _deep_gemm,
        "flashinfer": _flashinfer,
        "tilelang": _tilelang,
        "cutlass": _cute_dsl,
        "humming": _humming,
    }
    for name, prepare in libraries.items():
        try:
            prepare(ledger)
        except Exception as error:
            failed.append(f"{name}: {type(error).__name__}: {error}"[:200])
    return failed


def _no_pinning() -> None:
    import torch
    import torch.utils._device as device

    device._device_constructors()  # caches torch.tensor itself, before it is wrapped
    plain = torch.tensor

    def tensor(*args: Any, pin_memory: bool = False, **kwargs: Any) -> Any:
        return plain(*args, **kwargs)

    torch.tensor = tensor


def _no_dummy_values() -> None:
    """`load_format=dummy` writes random values, which changes no size."""
    import vllm.model_executor.model_loader.dummy_loader as dummy_loader
    import vllm.model_executor.model_loader.weight_utils as weight_utils

    def nothing(*_args: Any, **_kwargs: Any) -> None: ...

    for module in (weight_utils, dummy_loader):
        for name in ("initialize_single_dummy_weight", "initialize_dummy_weights"):
            if hasattr(module, name):
                setattr(module, name, nothing)
    _derived_weights(dummy_loader.DummyModelLoader)
    try:
        import vllm.model_executor.model_loader.reload.meta as reload_meta
    except ImportError:  # releases without layerwise reloading
        return
    import torch

    def materialize_meta_tensor(meta: Any) -> Any:
        made = torch.nn.Parameter(
            torch.empty_strided(tuple(meta.size()), tuple(meta.stride()), dtype=meta.dtype, device="cuda:0"),
            requires_grad=False,
        )
        for name, value in meta.__dict__.items():
            made.__dict__.setdefault(name, value)
        return made

    reload_meta.materialize_meta_tensor = materialize_meta_tensor


def _derived_weights(loader: Any) -> None:
    """What DeepSeek-V4's own `load_weights` makes of its weights, which dummy ones do not pass through
    (models/deepseek_v4/nvidia/model.py: DeepseekV4ForCausalLM.load_weights, 0.26.0).
    """
    plain = loader.load_weights

    def load_weights(self: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        result = plain(self, model, *args, **kwargs)
        for part in model.modules():
            if hasattr(part, "finalize_mhc_broadcast_weights"):
                part.finalize_mhc_broadcast_weights()
        return result

    loader.load_weights = load_weights


def _deep_gemm(ledger: TensorLedger) -> None:
    import torch
    import vllm.utils.deep_gemm as deep_gemm

    deep_gemm._lazy_init()
    kernels = [
        name for name in dir(deep_gemm) if name.endswith("_impl") and getattr(deep_gemm, name) is not None
    ]

    def left_out(name: str) -> Any:
        def call(*_args: Any, **_kwargs: Any) -> None:
            ledger.skipped[f"deep_gemm.{name}"] += 1

        return call

    def scale_layout(
        sf: Any,
        mn: Any = None,
        k: Any = None,
        recipe: Any = None,
        num_groups: Any = None,
        *_a: Any,
        **_k: Any,
    ) -> Any:
        # DeepGEMM, csrc/utils/layout.hpp: unchanged on Hopper, packed to int32 (four scales each) from Blackwell on
        if torch.cuda.get_device_capability()[0] < 10:
            return sf
        groups = (num_groups,) if num_groups else ()
        return torch.empty(*groups, mn, (k + 511) // 512, dtype=torch.int32, device=sf.device)

    def tma_aligned(tensor: Any) -> Any:
        # DeepGEMM, get_mn_major_tma_aligned_tensor: rows padded to 16 bytes, column-major
        rows, aligned = tensor.shape[-2], -(-tensor.shape[-2] // 4) * 4
        shape = (*tensor.shape[:-2], tensor.shape[-1], aligned)
        made = torch.empty(shape, dtype=tensor.dtype, device=tensor.device)
        return made.transpose(-1, -2)[..., :rows, :]

    special = {
        "_transform_sf_into_required_layout_impl": scale_layout,
        "_get_mn_major_tma_aligned_tensor_impl": tma_aligned,
        "_get_mk_alignment_for_contiguous_layout_impl": lambda *_a, **_k: 128,
        "_get_theoretical_mk_alignment_for_contiguous_layout_impl": lambda *_a, **_k: 128,
    }
    for name in kernels:
        if name in special:
            setattr(deep_gemm, name, special[name])
        elif "gemm" in name or "einsum" in name or name.startswith("_grouped"):
            setattr(deep_gemm, name, left_out(name.strip("_").removesuffix("_impl")))


def _flashinfer(ledger: TensorLedger) -> None:
    import flashinfer.jit.core as jit

    class Result(int):
        """What a compiled function gives: a status or size of 0, or an object with functions."""

        def __getattr__(self, name: str) -> Any:
            return getattr(Module(), name)

    class Module:
        """A compiled module whose functions write into their arguments."""

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)

            def call(*_args: Any, **_kwargs: Any) -> Any:
                ledger.skipped[f"flashinfer.{name}"] += 1
                return Result()

            return call

    jit.JitSpec.build_and_load = lambda self, *_args, **_kwargs: Module()
    jit.JitSpec.build = lambda self, *_args, **_kwargs: None
    import flashinfer.sampling as sampling

    sampling.get_seed_and_offset = lambda *_args, **_kwargs: (0, 0)


def _tilelang(ledger: TensorLedger) -> None:
    try:
        from tilelang.jit import JITImpl
    except ImportError:  # an optional part of a vLLM environment
        return

    def call(self: Any, *_args: Any, **_kwargs: Any) -> None:
        ledger.skipped[f"tilelang.{getattr(self.func, '__name__', 'kernel')}"] += 1

    JITImpl.__call__ = call


def _cute_dsl(ledger: TensorLedger) -> None:
    try:
        import cutlass.cute as cute
    except ImportError:  # an optional part of a vLLM environment
        return

    def compile_nothing(kernel: Any, *_args: Any, **_kwargs: Any) -> Any:
        def call(*_args: Any, **_kwargs: Any) -> None:
            ledger.skipped[f"cute.{type(kernel).__name__}"] += 1

        return call

    cute.compile = compile_nothing


def _humming(ledger: TensorLedger) -> None:
    try:
        import humming.utils.device as humming_device
    except ImportError:  # an optional part of a vLLM environment
        return
    if not hasattr(humming_device, "_get_device_info_extension"):
        return
    import torch

    class Info:
        """What its compiled extension reads from the driver, as far as its tuning tables look at it."""

        def __init__(self, index: int) -> None:
            found = torch.cuda.get_device_properties(0)
            self.index, self.name, self.is_ppu = index, found.name, False
            self.sm_count = found.multi_processor_count
            self.sm_major, self.sm_minor = found.major, found.minor
            self.sm_version = 10 * found.major + found.minor
            self.max_threads_per_block, self.max_threads_per_sm = 1024, 2048
            self.max_registers_per_sm = 65536
            self.default_smem_size, self.max_smem_size = 48 << 10, 227 << 10
            self.max_smem_size_kb = 227
            self.l1_cache_size, self.l1_cache_size_kb = 256 << 10, 256
            self.l2_cache_size, self.l2_cache_size_mb = 50 << 20, 50.0
            self.memory_bandwidth_gbps = 1.0
            self.tensorcore_tops: dict[str, float] = defaultdict(lambda: 1.0)

    class Extension:
        _DeviceInfo = Info

    humming_device._extension = Extension
    _equal_scales(ledger)


def _equal_scales(ledger: TensorLedger) -> None:
    """A layer's NVFP4 shards have one global scale in the checkpoints that there are; whether they do is asked of values
    (humming/schema/base.py: _may_process_global_scale).
    """
    import torch
    from humming.schema import BaseWeightSchema

    process = BaseWeightSchema._may_process_global_scale

    def process_equal(self: Any, scale: Any, *args: Any, **kwargs: Any) -> Any:
        nvfp4 = "nvfp4" in f"{getattr(self, 'format', '')} {getattr(self, 'quant_algo', '')}".lower()
        if not nvfp4 or kwargs.get("force_repeat"):
            return process(self, scale, *args, **kwargs)
        ledger.imitated["humming: equal global scales"] += 1
        experts = kwargs.get("num_experts") or 1
        result: torch.Tensor = scale.view(experts, -1)[:, 0]
        return result

    BaseWeightSchema._may_process_global_scale = process_equal
