"""What loading leaves partly used: the shortcut (pools apart, states kept) is the whole simulation, start to end."""

from __future__ import annotations

import random

import pytest
from building import context, model
from vllm_capacity import plan
from vllm_capacity.inputs.models import load_model
from vllm_capacity.overheads import workspaces
from vllm_capacity.parallel import ParallelConfig
from vllm_capacity.units import MIB
from vllm_capacity.weights.allocator import SMALL, Block, CachingAllocator, SmallPool
from vllm_capacity.weights.model import RankWeights, rank_weights
from vllm_capacity.weights.segments import EMPTIED, _load, _Recorder, pinned_bytes

MODELS = ("Qwen/Qwen2.5-0.5B-Instruct", "openai/gpt-oss-20b", "Qwen/Qwen3-8B-AWQ", "google/gemma-3-4b-it")


def simulated(
    weights: RankWeights, before: tuple[int, ...], after: tuple[int, ...], max_split: int | None
) -> int:
    """Every allocation in its order, in both pools of one device."""
    large, small = CachingAllocator(max_split), SmallPool()

    def pool(size: int) -> CachingAllocator:
        return small if size <= SMALL else large

    recorder = _Recorder()
    recorder.allocate_all(before)
    _load(recorder, weights, 0, late=True)
    recorder.allocate_all(after)
    recorder.empty_cache()
    blocks: dict[int, tuple[CachingAllocator, Block]] = {}
    for number, n_bytes in recorder.events:
        if n_bytes:
            blocks[number] = pool(n_bytes), pool(n_bytes).allocate(n_bytes)
        elif number == EMPTIED[0]:
            large.empty_cache()
            small.empty_cache()
        else:
            home, block = blocks.pop(number)
            home.free(block)
    return large.unused + small.unused


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("max_split", [None, 20 * MIB])
def test_the_shortcut_is_the_simulation(name: str, max_split: int | None, monkeypatch: pytest.MonkeyPatch):
    seen: list[RankWeights] = []

    def kept(models: tuple[RankWeights, ...], *rest: object) -> int:
        seen.extend(models)
        return 0

    monkeypatch.setattr(workspaces, "pinned_bytes", kept)
    plan(load_model(name), gpu="H200", vllm_version="0.33.0", suggestions=False)
    assert seen
    chance = random.Random(name)
    for weights in {id(weights): weights for weights in seen}.values():
        for _ in range(8):
            before = tuple(
                chance.choice((512, 40_000, 700_000, 3 * MIB, 17 * MIB, 70 * MIB))
                for _ in range(chance.randrange(6))
            )
            after = tuple(
                chance.choice((2_000, 900_000, 5 * MIB, 33 * MIB)) for _ in range(chance.randrange(4))
            )
            assert pinned_bytes((weights,), (), before, after, (), max_split) == simulated(
                weights, before, after, max_split
            )


def test_a_rank_without_experts_asks_for_no_block_for_them():
    parallel = ParallelConfig(tp=8, dp=32, expert_parallel=True)
    weights = rank_weights(context(model("Qwen/Qwen3-30B-A3B"), parallel=parallel), 200)
    assert any(not group.n_bytes for group in weights.groups)
    assert pinned_bytes((weights,), (), (), (), (), None) == simulated(weights, (), (), None)


@pytest.mark.parametrize(
    "name",
    [
        "Qwen/Qwen3-8B-AWQ",
        "TheBloke/Llama-2-13B-chat-GPTQ",
        "openai/gpt-oss-120b",
        "deepseek-ai/DeepSeek-V3.2",
    ],
)
def test_every_tensor_that_processing_makes_and_does_not_keep_is_freed(name: str):
    """Else a simulated load would end with more than the model's tensors."""
    weights = rank_weights(context(load_model(name)))
    assert weights.repacked
    recorder = _Recorder()
    _load(recorder, weights, 0, late=True)
    alive: dict[int, int] = {}
    for number, n_bytes in recorder.events:
        if n_bytes:
            alive[number] = n_bytes
        elif number != EMPTIED[0]:
            del alive[number]
    assert sum(alive.values()) == weights.n_bytes
