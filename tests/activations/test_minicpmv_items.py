"""MiniCPM-V 2.6 in the encoder's profile run: items from the class's arithmetic, bytes from vLLM's own forward."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from recorded import run_named
from vllm_capacity.activations.encoder import encoder_batch, encoder_phases
from vllm_capacity.activations.vision import largest_item
from vllm_capacity.architecture.registry import build_architecture
from vllm_capacity.context import RankContext
from vllm_capacity.inputs.models import load_model
from vllm_capacity.releases import get_release

PEAK, PIXELS = 5_964_247_040, 154_140_672
"""Bytes of `get_vision_hidden_states` for 128 frames of 448 x 448 (8 videos of 16) and of its input alone, counted while
vLLM 0.33.0's own MiniCPMV2_6 ran on tensors without storage (scaled_dot_product_attention taken as its output alone)."""


def context(others: dict[str, Any] | None = None, **engine: Any) -> RankContext:
    ctx = run_named("h100/google-gemma-3-4b-it--h100-80gb--tp1pp1dp1--8192").context()
    config, release = load_model("openbmb/MiniCPM-V-2_6-derived", offline=True), get_release("0.33.0")
    args = replace(ctx.engine.args, others=others or {})
    settings: dict[str, Any] = {"model_runner": "V2", "max_model_len": 32768, **engine}
    return replace(
        ctx,
        config=config,
        release=release,
        architecture=build_architecture(config, release),
        engine=replace(ctx.engine, args=args, **settings),
    )


def test_a_video_of_sixteen_frames_is_the_largest_item() -> None:
    batch = encoder_batch(context())
    assert batch is not None
    assert (batch.count, batch.item.modality, batch.item.tokens) == (8, "video", 16 * 64)
    assert batch.count * batch.item.pixel_elements * 2 == PIXELS


@pytest.mark.parametrize(
    ("others", "tokens"),
    [
        ({"limit_mm_per_prompt": {"video": 0}}, (9 + 1) * 64),
        ({"limit_mm_per_prompt": {"video": 0}, "mm_processor_kwargs": {"max_slice_nums": 4}}, (4 + 1) * 64),
        ({"limit_mm_per_prompt": {"video": 0}, "mm_processor_kwargs": {"max_slice_nums": 1}}, 64),
    ],
)
def test_an_image_is_cut_into_slices_beside_its_overview(others: dict[str, Any], tokens: int) -> None:
    item = largest_item(context(others))
    assert item is not None
    assert (item.modality, item.tokens) == ("image", tokens)


@pytest.mark.parametrize(("images", "length", "frames"), [(1, 1600, 15), (0, 1600, 16), (0, 640, 10)])
def test_a_short_context_holds_fewer_frames_beside_an_image(images: int, length: int, frames: int) -> None:
    item = largest_item(context({"limit_mm_per_prompt": {"image": images}}, max_model_len=length))
    assert item is not None
    assert (item.modality, item.tokens) == ("video", frames * 64)


def test_the_resamplers_bytes_are_vllms() -> None:
    (phase,), _ = encoder_phases(context(), ())
    term = next(term for term in phase.terms if term.name == "encoder_activations")
    assert term.low <= PEAK <= term.high
    assert term.n_bytes == pytest.approx(PEAK, rel=0.003)
