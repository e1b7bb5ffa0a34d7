"""The draft's forward in the profile run, against vLLM 0.33.0's own start-up on tensors without storage."""

from __future__ import annotations

from vllm_capacity import Plan, plan
from vllm_capacity.inputs.models import load_model

DRAFT = {"method": "eagle3", "model": "SpecForge/llama3-8B-eagle3", "num_speculative_tokens": 3}


def drafting(sequences: int, **more: object) -> Plan:
    found = plan(
        load_model("meta-llama/Llama-3.1-8B"), gpu="H200", vllm_version="0.33.0", suggestions=False, dtype="bfloat16",
        load_format="dummy", max_model_len=32768, max_num_batched_tokens=8192, max_num_seqs=sequences,
        **{"speculative_config": DRAFT, **more},
    )  # fmt: skip
    assert isinstance(found, Plan)
    return found


def test_with_few_sequences_the_draft_runs_at_the_peak() -> None:
    """`vllm-capacity dry-run` of that line with --enforce-eager: 1,241,518,080 bytes, of which 1,024 have no name here."""
    (rank,) = drafting(16, enforce_eager=True).ranks
    assert rank.activation.winner.name.startswith("draft ")
    assert 1_241_518_080 - rank.activation.n_bytes == 1024
    names = {term.name for term in rank.activation.terms}
    assert {"auxiliary_hidden_states", "target_hidden_states", "combined_hidden_states"} <= names


def test_the_sampler_runs_when_they_are_gone() -> None:
    """Run v0.33-llama-3.1-8b-eagle3: 1,919,989,248 bytes."""
    (rank,) = drafting(1024, compilation_config={"cudagraph_capture_sizes": [1, 8]}).ranks
    assert rank.activation.n_bytes == 1_919_989_248
    assert "auxiliary_hidden_states" not in {term.name for term in rank.activation.terms}


def test_a_draft_model_of_its_own_runs_beside_the_targets_output_alone() -> None:
    given = {
        "method": "draft_model",
        "model": "meta-llama/Llama-3.2-1B-Instruct",
        "num_speculative_tokens": 3,
    }
    (rank,) = drafting(16, enforce_eager=True, speculative_config=given).ranks
    (mlp,) = [p for p in rank.activation.phases if p.name.startswith("draft ") and "MLP" in p.name]
    assert "target_hidden_states" in {term.name for term in mlp.terms}
    assert not {"auxiliary_hidden_states", "combined_hidden_states"} & {term.name for term in mlp.terms}


def test_a_next_token_layer_runs_beside_the_targets_output() -> None:
    """`vllm-capacity dry-run` of GLM-4.5-Air, four layers, --enforce-eager: 1,979,715,584 bytes; the plan gives the draft's
    attention the same tensors as the target's, one of keys (16 MiB) more.
    """
    found = plan(
        load_model("zai-org/GLM-4.5-Air", hf_overrides={"num_hidden_layers": 4}), gpu="H200", vllm_version="0.33.0",
        suggestions=False, load_format="dummy", max_model_len=32768, max_num_batched_tokens=8192, max_num_seqs=16,
        enforce_eager=True, speculative_config={"method": "mtp", "num_speculative_tokens": 1},
    )  # fmt: skip
    assert isinstance(found, Plan)
    (rank,) = found.ranks
    assert rank.activation.winner.name == "draft attention"
    assert rank.activation.n_bytes - 1_979_715_584 == 16 * 2**20 - 1024
