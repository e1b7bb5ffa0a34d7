"""Release differences of attention backends and layers' cache specs: which kernels exist, what they accept.

Rows of the same table as `features.py`; the names are asked for by the attention rules and `kv_cache`.
"""

from __future__ import annotations

from vllm_capacity.releases.release import Feature

_FLASH = "v1/attention/backends/flash_attn.py: FlashAttentionBackend"
_VERSION = "v1/attention/backends/fa_utils.py: get_flash_attn_version"
_FLASHINFER = "v1/attention/backends/flashinfer.py: FlashInferBackend"
_ORDER = "platforms/cuda.py: _get_backend_priorities"
_STATES = "model_executor/layers/mamba/mamba_utils.py: MambaStateShapeCalculator"

BACKEND_FEATURES: tuple[Feature, ...] = (
    # -- FlashAttention
    Feature(
        "flash_attention_large_heads",
        "0.20.0",
        None,
        f"{_FLASH}.supports_head_size",
        "heads of up to 512 where FlashAttention 4 runs; before, 256",
    ),
    Feature(
        "flash_attention_4_sinks",
        "0.20.0",
        None,
        "v1/attention/backends/fa_utils.py: flash_attn_supports_sinks",
        "FlashAttention 4 serves attention sinks",
    ),
    Feature(
        "flash_attention_large_heads_sm90",
        "0.21.0",
        None,
        _VERSION,
        "heads above 256 take FlashAttention 4 on Hopper",
    ),
    Feature(
        "flash_attention_fp8_listed",
        "0.22.0",
        None,
        f"{_FLASH}.supports_kv_cache_dtype",
        "only fp8 and fp8_e4m3 caches are served; before, every quantised one on Hopper",
    ),
    Feature(
        "flash_attention_mm_prefix",
        "0.24.0",
        None,
        f"{_FLASH}.supports_mm_prefix",
        "FlashAttention 4 serves image tokens that see each other",
    ),
    Feature(
        "flash_attention_any_block",
        "0.25.0",
        None,
        f"{_FLASH}.get_supported_kernel_block_sizes",
        "hybrid models with fp32 states, too, may have blocks of any multiple of 16",
    ),
    Feature(
        "fa4_fp8_kv",
        "0.27.0",
        None,
        "v1/attention/backends/fa_utils.py: flash_attn_supports_kv_cache_dtype",
        "FlashAttention 4 serves fp8 caches on SM100",
    ),
    Feature(
        "fa4_head_192_by_value_size",
        "0.27.0",
        None,
        _VERSION,
        "on Blackwell FlashAttention 4 takes heads of 192 only with value heads of 128",
    ),
    Feature(
        "fa4_hd256_first", "0.27.0", "0.27.1", _VERSION, "on Blackwell FlashAttention 4 takes heads of 256"
    ),
    Feature(
        "fa4_hd256_kernel",
        "0.29.0",
        None,
        "v1/attention/backends/fa_utils.py: uses_fa4_hd256_kernel",
        "on Blackwell FlashAttention 4 has a kernel for heads of 256 with pages of 128 tokens",
    ),
    Feature(
        "fa4_fp8_kv_hopper_512",
        "0.31.0",
        None,
        f"{_FLASH}._get_sm90_fa4_fp8_kv_block_size",
        "fp8 caches with heads of 512 on Hopper, in pages of 64 tokens",
    ),
    # -- other backends
    Feature(
        "flex_attention_block_16",
        "0.21.0",
        None,
        "v1/attention/backends/flex_attention.py: FlexAttentionBackend.get_supported_kernel_block_sizes",
        "FlexAttention blocks are multiples of 16; before, any",
    ),
    Feature(
        "flashinfer_nvfp4",
        "0.21.0",
        None,
        f"{_FLASHINFER}.supported_kv_cache_dtypes",
        "FlashInfer serves nvfp4 caches",
    ),
    Feature(
        "flashinfer_head_512",
        "0.22.0",
        None,
        f"{_FLASHINFER}.get_supported_head_sizes",
        "FlashInfer serves heads of 512",
    ),
    Feature(
        "flashinfer_large_pages",
        "0.24.0",
        None,
        f"{_FLASHINFER}.get_supported_kernel_block_sizes",
        "grouped-query models on SM100 may have pages of up to 1,024 tokens",
    ),
    Feature(
        "flashinfer_from_sm80",
        "0.24.0",
        None,
        f"{_FLASHINFER}.supports_compute_capability",
        "FlashInfer needs compute capability 8.0; before, 7.5",
    ),
    Feature(
        "flashinfer_nvfp4_sm100_only",
        "0.25.0",
        None,
        f"{_FLASHINFER}.supports_kv_cache_dtype",
        "nvfp4 caches need SM100",
    ),
    Feature(
        "flashinfer_sinks_sm120",
        "0.28.0",
        None,
        f"{_FLASHINFER}.supports_sink",
        "FlashInfer serves attention sinks on SM120",
    ),
    Feature(
        "flashinfer_sinks_sm90",
        "0.30.0",
        None,
        f"{_FLASHINFER}.supports_sink",
        "FlashInfer serves attention sinks on SM90",
    ),
    Feature(
        "flashinfer_nvfp4_fa2",
        "0.32.0",
        None,
        f"{_FLASHINFER}.supports_kv_cache_dtype",
        "nvfp4 caches also on SM80, SM90 and SM120",
    ),
    Feature(
        "triton_diffkv",
        "0.24.0",
        None,
        "v1/attention/backends/registry.py: AttentionBackendEnum",
        "models with value heads of another size fall back to TRITON_ATTN_DIFFKV",
    ),
    Feature(
        "backends_declare_windows",
        "0.26.0",
        None,
        "v1/attention/backend.py: AttentionBackend.supports_sliding_window",
        "backends say whether they serve sliding windows; TurboQuant does not",
    ),
    Feature(
        "triton_kv_by_gpu",
        "0.24.0",
        None,
        "v1/attention/backends/triton_attn.py: TritonAttentionImpl.__init__",
        "TRITON_ATTN refuses an fp8 cache below SM89 and a bfloat16 cache below SM80",
    ),
    # -- order and latent attention
    Feature(
        "triton_mla_kv_by_gpu",
        "0.26.0",
        None,
        "v1/attention/backends/mla/triton_mla.py: TritonMLAImpl.__init__",
        "TRITON_MLA refuses an fp8 cache below SM89 and a bfloat16 cache below SM80",
    ),
    Feature("sm120_mla_order", "0.24.0", None, _ORDER, "SM120 has an order of its own for latent attention"),
    Feature(
        "flashinfer_mla_sparse_sm90",
        "0.30.0",
        None,
        _ORDER,
        "backend FLASHINFER_MLA_SPARSE_SM90 is in the order",
    ),
    Feature(
        "mm_prefix_composites",
        "0.30.0",
        None,
        _ORDER,
        "image tokens that see each other prefer Triton together with FlashAttention or FlashInfer",
    ),
    Feature(
        "mla_head_512",
        "0.30.0",
        None,
        "model_executor/layers/attention/mla_attention.py: MLACommonBackend.get_supported_head_sizes",
        "latent heads of 512 (without a rope part)",
    ),
    Feature(
        "flashmla_sparse_head_512",
        "0.20.0",
        "0.21.0",
        "v1/attention/backends/mla/flashmla_sparse.py: FlashMLASparseBackend.get_supported_head_sizes",
        "FLASHMLA_SPARSE takes latent heads of 512",
    ),
    Feature(
        "flashmla_sparse_nope",
        "0.31.0",
        None,
        "v1/attention/backends/mla/flashmla_sparse.py: FlashMLASparseBackend.supports_combination",
        "FLASHMLA_SPARSE serves latents without a rope part on Hopper",
    ),
    Feature(
        "sparse_mla_any_block",
        "0.32.0",
        None,
        "v1/attention/backends/mla/flashinfer_mla_sparse.py: get_supported_kernel_block_sizes",
        "sparse latent backends take any multiple of their kernel block",
    ),
    Feature("fa4_sparse_mla", "0.33.0", None, _ORDER, "backend FLASH_ATTN_MLA_SPARSE_FA4 is in the order"),
    # -- block sizes and specs
    Feature(
        "hybrid_block_by_backend",
        "0.20.0",
        None,
        "platforms/interface.py: Platform._align_hybrid_block_size",
        "hybrid blocks are multiples of the backend's kernel block; before, of 16 (64 for latent attention)",
    ),
    Feature(
        "swa_takes_main_block",
        "0.30.0",
        None,
        "model_executor/layers/attention/attention.py: Attention.get_kv_cache_spec",
        "sliding-window layers take the main block size where their kernels can",
    ),
    Feature(
        "sparse_cache_roles",
        "0.30.0",
        None,
        "v1/kv_cache_interface.py: MLAAttentionSpec",
        "an indexer's cache and the layers that own one are specs of their own",
    ),
    Feature(
        "kernel_block_stride",
        "0.32.0",
        None,
        "v1/worker/utils.py: customize_attention_spec",
        "packed blocks keep the fixed kernel blocks of a backend whole",
    ),
    # -- states
    Feature(
        "kda_one_convolution",
        "0.23.0",
        None,
        f"{_STATES}.kda_state_shape",
        "Kimi delta attention keeps one convolution state; before, three",
    ),
    Feature(
        "kda_speculative_states",
        "0.27.0",
        None,
        f"{_STATES}.kda_state_shape",
        "Kimi delta attention's convolution state grows with speculative tokens",
    ),
    Feature(
        "short_conv_speculative_states",
        "0.29.0",
        None,
        f"{_STATES}.short_conv_state_shape",
        "short convolution states grow with speculative tokens",
    ),
    Feature(
        "kda_state_dtype_flag",
        "0.30.0",
        None,
        "model_executor/layers/mamba/mamba_utils.py: MambaStateDtypeCalculator.kda_state_dtype",
        "--mamba-ssm-cache-dtype rules Kimi delta attention's state; before, always fp32",
    ),
    Feature(
        "mamba2_prefill_checkpoints",
        "0.32.0",
        None,
        "model_executor/layers/mamba/mamba_mixer2.py: MambaMixer2.get_kv_cache_spec",
        "Mamba 2 layers keep one prefill checkpoint block in mode 'align'",
    ),
    Feature(
        "gdn_prefill_checkpoints",
        "0.33.0",
        None,
        "model_executor/layers/mamba/gdn/qwen_gdn_linear_attn.py: get_kv_cache_spec",
        "gated delta nets keep one prefill checkpoint block in mode 'align' where FlashInfer prefills",
    ),
)
