"""Mixers with a recurrent state (Mamba, delta nets, short convolutions): modules and the state's facts.

Source: vllm/model_executor/layers/mamba (0.26.0): mamba_mixer.py:89-181, mamba_mixer2.py:282-475,
short_conv.py:46-90, gdn/qwen_gdn_linear_attn.py:366-556, gdn/kimi_gdn_linear_attn.py:110-220.
"""

from __future__ import annotations

from vllm_capacity.architecture import common
from vllm_capacity.architecture.modules import Linear, Module, Shard, StateSpace, StateSpaceKind, Tensor
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.model_config import ModelConfig


def mamba2_mixer(
    config: ModelConfig,
    *,
    inner_size: int,
    state_size: int,
    num_heads: int,
    head_dim: int,
    n_groups: int,
    conv_kernel: int,
    ssm_dtype: str | None = None,
) -> StateSpace:
    """Facts of a MambaMixer2. InputError where heads and inner size disagree."""
    if num_heads * head_dim != inner_size:
        raise InputError(
            f"{config.name}: {num_heads} Mamba heads of size {head_dim} are not the inner size {inner_size}"
        )
    chunk = config.get("mamba_chunk_size") is not None
    return StateSpace(
        kind=StateSpaceKind.MAMBA2,
        conv_kernel=conv_kernel,
        inner_size=inner_size,
        state_size=state_size,
        num_heads=num_heads,
        head_dim=head_dim,
        n_groups=n_groups,
        ssm_dtype=ssm_dtype,
        chunk_size=config.integer("mamba_chunk_size" if chunk else "chunk_size", 0),
    )


def mamba2_modules(
    hidden_size: int,
    mixer: StateSpace,
    *,
    prefix: str = "mixer",
    conv_bias: bool = True,
    bias: bool = False,
    gated_norm: bool = True,
) -> tuple[Module, ...]:
    """MambaMixer2: conv1d is never quantised, A is fp32, the gated norm's weight is divided by tp."""
    inner, heads = mixer.inner_size, mixer.num_heads
    groups = mixer.n_groups * mixer.state_size
    return (
        Linear(
            name=f"{prefix}.conv1d",
            inputs=mixer.conv_kernel,
            outputs=(inner, groups, groups),
            shard=Shard.COLUMN,
            bias=conv_bias,
            quantised=False,
            num_groups=mixer.n_groups,
            grouped=(1, 2),
        ),
        Linear(
            name=f"{prefix}.in_proj",
            inputs=hidden_size,
            outputs=(inner, inner, groups, groups, heads),
            shard=Shard.COLUMN,
            bias=bias,
            num_groups=mixer.n_groups,
            grouped=(2, 3),
        ),
        Tensor(name=f"{prefix}.A", shape=(heads,), shard_dim=0, dtype="float32"),
        Tensor(name=f"{prefix}.D", shape=(heads,), shard_dim=0),
        Tensor(name=f"{prefix}.dt_bias", shape=(heads,), shard_dim=0),
        Linear(name=f"{prefix}.out_proj", inputs=inner, outputs=(hidden_size,), shard=Shard.ROW, bias=bias),
        *((Tensor(name=f"{prefix}.norm.weight", shape=(inner,), shard_dim=0),) if gated_norm else ()),
    )


def mamba1_modules(
    hidden_size: int,
    mixer: StateSpace,
    *,
    time_step_rank: int,
    prefix: str = "mixer",
    conv_bias: bool = True,
    bias: bool = False,
    norms: bool = False,
    norm_weights: bool = True,
) -> tuple[Module, ...]:
    """MambaMixer: nothing in it is quantised. `norms`: dt, B and C norms (Jamba, Falcon-Mamba).

    Without `norm_weights` their ones are plain tensors (`RMSNorm(has_weight=False)`, layers/layernorm.py).
    """
    inner, state = mixer.inner_size, mixer.state_size
    small = (
        (("dt_layernorm", time_step_rank), ("b_layernorm", state), ("c_layernorm", state)) if norms else ()
    )
    return (
        Linear(
            name=f"{prefix}.conv1d",
            inputs=mixer.conv_kernel,
            outputs=(inner,),
            shard=Shard.COLUMN,
            bias=conv_bias,
            quantised=False,
        ),
        Linear(
            name=f"{prefix}.in_proj",
            inputs=hidden_size,
            outputs=(inner, inner),
            shard=Shard.COLUMN,
            bias=bias,
            quantised=False,
        ),
        Linear(
            name=f"{prefix}.x_proj",
            inputs=inner,
            outputs=(time_step_rank + 2 * state,),
            shard=Shard.ROW,
            quantised=False,
        ),
        Linear(
            name=f"{prefix}.dt_proj",
            inputs=time_step_rank,
            outputs=(inner,),
            shard=Shard.COLUMN,
            bias=True,
            quantised=False,
        ),
        Tensor(name=f"{prefix}.A", shape=(inner, state), shard_dim=0, dtype="float32"),
        Tensor(name=f"{prefix}.D", shape=(inner,), shard_dim=0),
        Linear(
            name=f"{prefix}.out_proj",
            inputs=inner,
            outputs=(hidden_size,),
            shard=Shard.ROW,
            bias=bias,
            quantised=False,
        ),
        *(
            Tensor(name=f"{prefix}.{name}.weight", shape=(size,), buffer=not norm_weights)
            for name, size in small
        ),
    )


def gated_delta_net(config: ModelConfig, *, ssm_dtype: str | None = None) -> StateSpace:
    """Qwen3-Next's and Qwen3.5's linear attention."""
    return StateSpace(
        kind=StateSpaceKind.GATED_DELTA_NET,
        conv_kernel=config.size("linear_conv_kernel_dim", 4),
        num_key_heads=config.size("linear_num_key_heads", 16),
        num_value_heads=config.size("linear_num_value_heads", 32),
        key_head_dim=config.size("linear_key_head_dim", 128),
        value_head_dim=config.size("linear_value_head_dim", 128),
        ssm_dtype=ssm_dtype,
    )


def gated_delta_modules(
    hidden_size: int,
    mixer: StateSpace,
    *,
    prefix: str = "linear_attn",
    interleaved: bool,
    whole_ba: bool = False,
) -> tuple[Module, ...]:
    """QwenGatedDeltaNetAttention. `interleaved`: one fused slice (Qwen3-Next), else one per tensor (Qwen3.5).

    `whole_ba`: in_proj_ba is whole on every rank (Qwen3.5 with AWQ, GPTQ or INC,
    qwen_gdn_linear_attn.py:540-556).
    """
    key = mixer.num_key_heads * mixer.key_head_dim
    value = mixer.num_value_heads * mixer.value_head_dim
    heads = mixer.num_value_heads
    qkvz, ba = (key, key, value, value), (heads, heads)
    return (
        Linear(
            name=f"{prefix}.conv1d",
            inputs=mixer.conv_kernel,
            outputs=(2 * key + value,),
            shard=Shard.COLUMN,
            quantised=False,
        ),
        Linear(
            name=f"{prefix}.in_proj_qkvz",
            inputs=hidden_size,
            outputs=(sum(qkvz),) if interleaved else qkvz,
            shard=Shard.COLUMN,
        ),
        Linear(
            name=f"{prefix}.in_proj_ba",
            inputs=hidden_size,
            outputs=(sum(ba),) if interleaved else ba,
            shard=Shard.REPLICATED if whole_ba else Shard.COLUMN,
        ),
        Tensor(name=f"{prefix}.dt_bias", shape=(heads,), shard_dim=0),
        Tensor(name=f"{prefix}.A_log", shape=(heads,), shard_dim=0, dtype="float32"),
        *common.norm(f"{prefix}.norm", mixer.value_head_dim),
        Linear(name=f"{prefix}.out_proj", inputs=value, outputs=(hidden_size,), shard=Shard.ROW),
    )


def short_conv_modules(
    dim: int, mixer: StateSpace, *, bias: bool, prefix: str = "short_conv"
) -> tuple[Module, ...]:
    """LFM2's ShortConv; it gets no quantisation config."""
    return (
        Linear(
            name=f"{prefix}.conv",
            inputs=mixer.conv_kernel,
            outputs=(dim,),
            shard=Shard.COLUMN,
            bias=bias,
            quantised=False,
        ),
        Linear(
            name=f"{prefix}.in_proj",
            inputs=dim,
            outputs=(dim, dim, dim),
            shard=Shard.COLUMN,
            bias=bias,
            quantised=False,
        ),
        Linear(
            name=f"{prefix}.out_proj", inputs=dim, outputs=(dim,), shard=Shard.ROW, bias=bias, quantised=False
        ),
    )


def kimi_delta_modules(
    hidden_size: int, mixer: StateSpace, *, prefix: str = "self_attn"
) -> tuple[Module, ...]:
    """KimiGatedDeltaNetAttention: fp32 convolutions, decay and bias; the low-rank down projections are
    whole.
    """
    width, head = mixer.num_heads * mixer.head_dim, mixer.head_dim

    def linear(name: str, inputs: int, outputs: int, shard: Shard) -> Linear:
        return Linear(name=f"{prefix}.{name}", inputs=inputs, outputs=(outputs,), shard=shard)

    convolutions = tuple(
        Linear(
            name=f"{prefix}.{name}_conv1d",
            inputs=mixer.conv_kernel,
            outputs=(width,),
            shard=Shard.COLUMN,
            quantised=False,
            dtype="float32",
        )
        for name in "qkv"
    )
    return (
        *(linear(f"{name}_proj", hidden_size, width, Shard.COLUMN) for name in "qkv"),
        linear("f_a_proj", hidden_size, head, Shard.REPLICATED),
        linear("f_b_proj", head, width, Shard.COLUMN),
        Tensor(name=f"{prefix}.dt_bias", shape=(width,), shard_dim=0, dtype="float32"),
        linear("b_proj", hidden_size, mixer.num_heads, Shard.COLUMN),
        *convolutions,
        Tensor(name=f"{prefix}.A_log", shape=(1, 1, mixer.num_heads, 1), shard_dim=2, dtype="float32"),
        linear("g_a_proj", hidden_size, head, Shard.REPLICATED),
        linear("g_b_proj", head, width, Shard.COLUMN),
        *common.norm(f"{prefix}.o_norm", head),
        linear("o_proj", width, hidden_size, Shard.ROW),
    )
