"""BERT, RoBERTa and XLM-RoBERTa as pooling models: embedding models and cross-encoders.

Source: vllm/model_executor/models/bert.py, roberta.py (0.26.0 and 0.33.0). Attention sees the whole prompt, so there is
no KV cache; three vocabulary embeddings are padded and divided by tp; the heads of classifiers are fp32 (`head_dtype`).
"""

from __future__ import annotations

from collections.abc import Mapping

from vllm_capacity.architecture import common
from vllm_capacity.architecture.modules import (
    Architecture,
    Attention,
    AttentionKind,
    DenseMLP,
    LayerGroup,
    Linear,
    Module,
    Placed,
    Placement,
    Shard,
    Tensor,
)
from vllm_capacity.errors import InputError, Reason, RefusedError
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release


def bert_embedding(config: ModelConfig, release: Release) -> Architecture:
    """BertEmbeddingModel: BertModel; its pooler is not built."""
    del release
    return _bert(config, "BertEmbeddingModel", "model")


def roberta_embedding(config: ModelConfig, release: Release) -> Architecture:
    """RobertaEmbeddingModel: RobertaModel, RobertaForMaskedLM, XLMRobertaModel."""
    del release
    return _bert(config, "RobertaEmbeddingModel", "model")


def bert_classifier(config: ModelConfig, release: Release) -> Architecture:
    """BertForSequenceClassification: a pooler [H, H] and a classifier, in fp32."""
    del release
    hidden = config.hidden_size
    head = (*_dense("bert.pooler.dense", hidden, hidden), *_dense("classifier", hidden, _labels(config)))
    return _bert(config, "BertForSequenceClassification", "bert", head)


def roberta_classifier(config: ModelConfig, release: Release) -> Architecture:
    """RobertaForSequenceClassification: RobertaClassificationHead, in fp32."""
    del release
    hidden = config.hidden_size
    head = (
        *_dense("classifier.dense", hidden, hidden),
        *_dense("classifier.out_proj", hidden, _labels(config)),
    )
    return _bert(config, "RobertaForSequenceClassification", "roberta", head)


def _labels(config: ModelConfig) -> int:
    """PretrainedConfig.num_labels: as many as `id2label` has, two without."""
    labels = config.root.get("id2label")
    if isinstance(labels, Mapping) and labels:
        return len(labels)
    return config.size("num_labels", 2)


def _dense(name: str, inputs: int, outputs: int) -> tuple[Module, ...]:
    return (
        Linear(
            name=name, inputs=inputs, outputs=(outputs,), shard=Shard.REPLICATED, bias=True, quantised=False,
            dtype="float32",
        ),
    )  # fmt: skip


def _bert(config: ModelConfig, name: str, prefix: str, head: tuple[Module, ...] = ()) -> Architecture:
    kind = config.get("position_embedding_type", "absolute")
    if kind != "absolute":
        raise RefusedError(
            Reason.UNSUPPORTED_BY_RELEASE, "Only 'absolute' position_embedding_type is supported"
        )
    hidden, width, layers = config.hidden_size, config.size("intermediate_size"), config.num_hidden_layers
    heads = config.num_attention_heads
    if hidden % heads:
        raise InputError(f"{config.name}: hidden_size {hidden} is not a multiple of {heads} attention heads")
    size = hidden // heads
    mixer = Attention(
        num_heads=heads, num_kv_heads=heads, head_size=size, head_size_v=size, kind=AttentionKind.ENCODER_ONLY,
        rope=False,
    )  # fmt: skip
    modules: tuple[Module, ...] = (
        *common.attention_modules(
            hidden, mixer, prefix="attention.self", qkv_bias=True, o_bias=True, out="output.dense"
        ),
        *common.norm("attention.output.LayerNorm", hidden, bias=True),
        *common.plain_mlp(
            hidden, width, prefix="mlp", bias=True, up="intermediate.dense", down="output.dense"
        ),
        *common.norm("output.LayerNorm", hidden, bias=True),
    )
    positions = config.size("max_position_embeddings", 512)
    embeddings = (
        common.embedding(config.vocab_size, hidden, name=f"{prefix}.embeddings.word_embeddings"),
        common.embedding(positions, hidden, name=f"{prefix}.embeddings.position_embeddings"),
        common.embedding(
            config.size("type_vocab_size", 2), hidden, name=f"{prefix}.embeddings.token_type_embeddings"
        ),
        *common.norm(f"{prefix}.embeddings.LayerNorm", hidden, bias=True),
        Tensor(name=f"{prefix}.embeddings.position_ids", shape=(1, positions), dtype="int64", buffer=True),
    )
    return Architecture(
        name=name,
        family="bert",
        hidden_size=hidden,
        vocab_size=config.vocab_size,
        num_hidden_layers=layers,
        layers=(
            LayerGroup(
                indices=tuple(range(layers)), modules=modules, mixers=(mixer,),
                feed_forward=DenseMLP(intermediate_size=width, gated=False),
            ),
        ),
        outside=tuple(Placed(module=module, placement=Placement.EVERY) for module in (*embeddings, *head)),
        dtype=common.checkpoint_dtype(config, pooling=True),
        runner_type="pooling",
        supports_pp=False,
    )  # fmt: skip
