"""A rank's context keeps what was worked out for it, and a changed context starts anew."""

from __future__ import annotations

from dataclasses import replace

from building import context, model
from vllm_capacity.context import RankContext, once


def test_a_function_is_asked_once_for_each_rank_and_its_arguments() -> None:
    asked: list[object] = []

    @once
    def bytes_of(ctx: RankContext, count: int = 1) -> int:
        """What it says."""
        asked.append(count)
        return count * ctx.engine.max_num_seqs

    ctx = context(model("meta-llama/Llama-3.1-8B-Instruct"))
    assert [bytes_of(ctx), bytes_of(ctx), bytes_of(ctx, 2), bytes_of(ctx, 2)] == [1024, 1024, 2048, 2048]
    assert asked == [1, 2]
    other = replace(ctx, engine=replace(ctx.engine, max_num_seqs=8))
    assert bytes_of(other) == 8
    assert bytes_of.__doc__ == "What it says."
