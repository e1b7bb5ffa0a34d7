"""Everything on a GPU beside weights, activations and KV cache: one module per cause, each yields its ledger
terms.

`overhead_terms` lists a term for every component it is responsible for; what does not apply is a term of 0
bytes that says why.
"""

from __future__ import annotations

from vllm_capacity.context import RankContext
from vllm_capacity.ledger import MemoryTerm
from vllm_capacity.overheads.all_reduce import all_reduce_terms
from vllm_capacity.overheads.attention_buffers import attention_buffer_terms
from vllm_capacity.overheads.connectors import connector_terms
from vllm_capacity.overheads.cuda_context import cuda_context_terms
from vllm_capacity.overheads.cuda_graphs import cuda_graph_terms, graph_estimate
from vllm_capacity.overheads.encoder import encoder_terms
from vllm_capacity.overheads.expert_parallel import expert_parallel_terms
from vllm_capacity.overheads.flashinfer import flashinfer_terms
from vllm_capacity.overheads.lora import lora_terms
from vllm_capacity.overheads.nccl import nccl_terms
from vllm_capacity.overheads.offload import offload_terms
from vllm_capacity.overheads.requests import request_terms
from vllm_capacity.overheads.runner_buffers import runner_buffer_terms
from vllm_capacity.overheads.speculative import speculative_terms
from vllm_capacity.overheads.unmodelled import unmodelled_terms
from vllm_capacity.overheads.workspaces import workspace_terms

_PARTS = (
    cuda_context_terms,
    nccl_terms,
    all_reduce_terms,
    runner_buffer_terms,
    workspace_terms,
    expert_parallel_terms,
    attention_buffer_terms,
    flashinfer_terms,
    cuda_graph_terms,
    encoder_terms,
    lora_terms,
    speculative_terms,
    offload_terms,
    connector_terms,
    request_terms,
    unmodelled_terms,
)


def overhead_terms(ctx: RankContext) -> tuple[MemoryTerm, ...]:
    """All terms of this rank that neither weights, activations nor the KV cache account for."""
    return tuple(t for part in _PARTS for t in part(ctx))


__all__ = ["graph_estimate", "overhead_terms"]
