"""From inputs to a `Plan`: one direction, no input or output.

    config + args + device + release -> architecture -> engine config -> terms per rank -> budget -> KV cache -> verdict
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from vllm_capacity.activations.peak import activation_peak
from vllm_capacity.architecture.modules import Architecture
from vllm_capacity.architecture.registry import build_architecture
from vllm_capacity.budget import PERSISTENT, RankBudget, device_bytes, rank_budget
from vllm_capacity.calibration import Calibration, coverage
from vllm_capacity.context import RankContext
from vllm_capacity.device import Device
from vllm_capacity.engine import EngineArgs, EngineConfig
from vllm_capacity.engine_defaults import resolve_engine
from vllm_capacity.errors import Reason, RefusedError
from vllm_capacity.host import host_needs
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.kv_cache.layers import layer_specs
from vllm_capacity.kv_cache.planning import KVCachePlan, plan_kv_cache
from vllm_capacity.ledger import Component, Lifetime, MemoryTerm, term
from vllm_capacity.overheads import graph_estimate, overhead_terms
from vllm_capacity.parallel import stage_bounds
from vllm_capacity.plan import ConcurrencyAnswer, Plan, RankPlan, RefusedPlan, Status, Verdict
from vllm_capacity.releases.release import Release
from vllm_capacity.weights.layout import check_layout
from vllm_capacity.weights.rank import parameter_total, weight_terms
