"""int8 weights with int8 activations (compressed-tensors, Quark) and int8 experts quantised while loading.

Sources (0.26.0): `CutlassInt8ScaledMMLinearKernel.process_weights_after_loading`,
kernels/linear/scaled_mm/cutlass.py; `CompressedTensorsW8A8Int8`, `CompressedTensorsW8A8Int8MoEMethod`;
`Int8OnlineMoEMethod`, quantization/online/int8.py (experts_int8, int8_per_channel_weight_only).
"""

from __future__ import annotations

from vllm_capacity.weights.quantisation.base import LayerTensors, QuantContext, Stored, bias_of
from vllm_capacity.weights.sharding import LocalExperts, LocalLinear


def int8_linear(
    layer: LocalLinear, context: QuantContext, *, per_channel: bool, static: bool, symmetric: bool
) -> LayerTensors:
    """The weight is transposed in place; fused per-tensor scales become one per output."""
    rows, inputs, shards = layer.rows, layer.inputs, len(layer.outputs)
    weight = Stored("weight", (rows, inputs), "int8", rows * inputs)
    bias = bias_of(layer, layer.dtype or context.dtype)
    loaded = (rows, 1) if per_channel else (shards,)
    spread = (rows, 1) if per_channel or shards > 1 else (shards,)
    built, stored = [weight], [weight]
    built.append(Stored("weight_scale", loaded, "float32", scale=True))
    stored.append(Stored("weight_scale", spread, "float32", scale=True))
    if static:
        built.append(Stored("input_scale", (1,), "float32", scale=True))
        stored.append(Stored("input_scale", (), "float32", scale=True))
        if not symmetric:
            built.append(Stored("input_zero_point", (1,), "int8", scale=True))
            stored.append(Stored("input_zero_point", (), "int32", scale=True))
    if not symmetric:
        stored.append(Stored("azp_adj", (1, rows), "int32", scale=True))
    return LayerTensors((*stored, *bias), (*built, *bias), 0 if symmetric else 8 * rows)


def int8_experts(layer: LocalExperts, context: QuantContext) -> LayerTensors:
    """Per-channel scales; Triton takes the weights as they are."""
    count, hidden, width = layer.num_experts, layer.hidden_size, layer.intermediate_size
    rows = layer.slices * width
    del context
    return LayerTensors((
        Stored("w13_weight", (count, rows, hidden), "int8", count * rows * hidden),
        Stored("w2_weight", (count, hidden, width), "int8", count * hidden * width),
        Stored("w13_weight_scale", (count, rows, 1), "float32", scale=True),
        Stored("w2_weight_scale", (count, hidden, 1), "float32", scale=True),
    ))  # fmt: skip


def int8_online_experts(layer: LocalExperts, context: QuantContext) -> LayerTensors:
    """Experts come in the model's dtype, one layer at a time, beside their int8 copies (w13 always two halves)."""
    count, hidden, width = layer.num_experts, layer.hidden_size, layer.intermediate_size
    del context
    stored = (
        Stored("w13_weight", (count, 2 * width, hidden), "int8", count * layer.slices * width * hidden),
        Stored("w2_weight", (count, hidden, width), "int8", count * hidden * width),
        Stored("w13_scale", (count, 2 * width), "float32", scale=True),
        Stored("w2_scale", (count, hidden), "float32", scale=True),
    )
    return LayerTensors(stored, (), 3 * (stored[0].n_bytes + stored[1].n_bytes))
