"""A rank's weights: tensors, ledger lines, load peak. The one place to import them from."""

from __future__ import annotations

from vllm_capacity.weights.groups import ROLES, ParameterGroup
from vllm_capacity.weights.model import RankWeights, Section, rank_weights, whole_weights
from vllm_capacity.weights.terms import load_peak_bytes, weight_terms
from vllm_capacity.weights.totals import parameter_total

__all__ = [
    "ROLES",
    "ParameterGroup",
    "RankWeights",
    "Section",
    "load_peak_bytes",
    "parameter_total",
    "rank_weights",
    "weight_terms",
    "whole_weights",
]
