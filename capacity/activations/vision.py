"""How large one image or video is for a model: tokens, pixels and patches of the item with which vLLM
profiles the encoder.

Item sizes come from the model's processor. Where config.json does not hold them (the preprocessor's files
do), the defaults of the public checkpoints stand here; `--mm-processor-kwargs` overrides them as in vLLM.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from vllm_capacity.context import RankContext
from vllm_capacity.errors import InputError
from vllm_capacity.frozen import dataclass
from vllm_capacity.inputs.model_config import MAX_DIMENSION

UNLIMITED = 999
"""vLLM's limit per prompt when none is given (config/multimodal.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One item of a modality. `tokens` are language-model positions, `embeddings` the encoder outputs that
    are kept.
    """

    modality: str
    tokens: int
    embeddings: int
    pixel_elements: int
    patches: int
    known: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Tower:
    """Widths of a vision tower, in elements per patch; `outputs` per kept embedding (deepstack features
    included).
    """

    hidden: int
    intermediate: int
    gated: bool
    outputs: int
    resampled: int = 0
    """Width to which a resampler brings every patch before its queries attend to them; 0 without one."""
    queries: int = 0


LLAMA4_VISION = {
    "image_size": 336,
    "patch_size": 14,
    "pixel_shuffle_ratio": 0.5,
    "hidden_size": 1408,
    "intermediate_size": 5632,
}
"""The public Llama 4 checkpoints' vision part, for copies of config.json that leave it out."""


def vision_part(ctx: RankContext) -> Mapping[str, Any]:
    """The config's vision part; empty without one."""
    if ctx.config.vision:
        return ctx.config.vision
    return LLAMA4_VISION if ctx.config.model_type == "llama4" else {}


def _size(values: Mapping[str, Any], key: str, default: int) -> int:
    """A count of the vision part or the root; `default` where it is absent or 0."""
    value = values.get(key) or default
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_DIMENSION:
        raise InputError(f"config key {key!r} of the vision part must be an integer, not {value!r:.60}")
    return value


def _ratio(values: Mapping[str, Any], key: str, default: float) -> float:
    value = values.get(key) or default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1e-3 <= value <= 1e3:
        raise InputError(f"config key {key!r} of the vision part must be a number above 0, not {value!r:.60}")
    return float(value)


def limits(ctx: RankContext) -> Mapping[str, int]:
    """`--limit-mm-per-prompt` by modality; options objects count by their `count`."""
    given = ctx.engine.args.other("limit_mm_per_prompt", {})
    found: dict[str, int] = {}
    if isinstance(given, Mapping):
        for modality, value in given.items():
            count = value.get("count", UNLIMITED) if isinstance(value, Mapping) else value
            if isinstance(count, int):
                found[str(modality)] = count
    if ctx.engine.args.other("language_model_only"):
        return dict.fromkeys(("image", "video", "audio"), 0)
    return found


def tower(ctx: RankContext) -> Tower | None:
    """The vision tower's widths from the config's vision part; None without one."""
    vision = vision_part(ctx)
    if not vision:
        return None
    kind = str(ctx.config.model_type)
    hidden = _size(vision, "hidden_size", 0) or _size(vision, "embed_dim", 0)
    if kind == "qwen2_vl":
        hidden = _size(vision, "embed_dim", 1280)
    intermediate = _size(vision, "intermediate_size", 0) or int(hidden * _ratio(vision, "mlp_ratio", 4.0))
    deepstack = len(vision.get("deepstack_visual_indexes") or ())
    return Tower(
        hidden=hidden,
        intermediate=intermediate,
        gated=kind in ("qwen2_5_vl", "mistral3", "pixtral"),
        outputs=ctx.architecture.hidden_size * (1 + deepstack),
        resampled=ctx.architecture.hidden_size if kind == "minicpmv" else 0,
        queries=_size(ctx.config.root, "query_num", 64) if kind == "minicpmv" else 0,
    )


def largest_item(ctx: RankContext) -> Item | None:
    """The item with the most tokens over the modalities that the limits allow; None where no encoder runs."""
    allowed = limits(ctx)
    items = [item for item in _items(ctx) if allowed.get(item.modality, UNLIMITED) > 0]
    if any(item.tokens < 1 for item in items):
        raise InputError(
            f"{ctx.config.name}: the vision part's image or patch size leaves an image without a token"
        )
    return max(items, key=lambda item: (item.tokens, item.modality), default=None)


def _items(ctx: RankContext) -> list[Item]:
    vision = vision_part(ctx)
    kind = str(ctx.config.model_type)
    overrides = ctx.engine.args.other("mm_processor_kwargs", {})
    overrides = overrides if isinstance(overrides, Mapping) else {}
    if not vision:
        return []
    if kind == "gemma3":
        return [_gemma3(ctx, vision)]
    if kind in ("mistral3", "pixtral"):
        return [_pixtral(ctx, vision)]
    if kind == "llama4":
        return [_llama4(vision, overrides)]
    if kind in ("qwen2_vl", "qwen2_5_vl"):
        return _qwen(ctx, vision, overrides, max_pixels=12_845_056, video_tokens=None)
    if kind == "minicpmv":
        return _minicpmv(ctx, vision, overrides)
    if kind.startswith(("qwen3_vl", "qwen3_5")):
        return _qwen(ctx, vision, overrides, max_pixels=16_777_216, video_tokens=153_600)
    return [_unknown(ctx, vision)]


def _gemma3(ctx: RankContext, vision: Mapping[str, Any]) -> Item:
    """A fixed square per image; without pan-and-scan one crop (models/gemma3_mm.py)."""
    size, tokens = _size(vision, "image_size", 896), _size(ctx.config.root, "mm_tokens_per_image", 256)
    patches = (size // _size(vision, "patch_size", 14)) ** 2
    return Item(
        modality="image", tokens=tokens, embeddings=tokens, pixel_elements=3 * size * size, patches=patches
    )


def _pixtral(ctx: RankContext, vision: Mapping[str, Any]) -> Item:
    """The largest square; one separator token per row of merged patches (models/pixtral.py, mistral3.py)."""
    size, patch = _size(vision, "image_size", 1540), _size(vision, "patch_size", 14)
    merge = _size(ctx.config.root, "spatial_merge_size", _size(vision, "spatial_merge_size", 1))
    side = size // (patch * merge)
    return Item(
        modality="image",
        tokens=side * (side + 1),
        embeddings=side * side,
        pixel_elements=3 * size * size,
        patches=(size // patch) ** 2,
    )


def _llama4(vision: Mapping[str, Any], overrides: Mapping[str, Any]) -> Item:
    """`max_patches` tiles of the checkpoint's processor (16) and one overview tile (models/mllama4.py)."""
    size, patch = _size(vision, "image_size", 336), _size(vision, "patch_size", 14)
    tiles = int(overrides.get("max_patches", 16)) + 1
    ratio = _ratio(vision, "pixel_shuffle_ratio", 0.5)
    per_tile = (size // patch) ** 2 // round(1.0 / ratio**2)
    return Item(
        modality="image",
        tokens=tiles * per_tile,
        embeddings=tiles * per_tile,
        pixel_elements=tiles * 3 * size * size,
        patches=tiles * ((size // patch) ** 2 + 1),
    )


def _minicpmv(ctx: RankContext, vision: Mapping[str, Any], overrides: Mapping[str, Any]) -> list[Item]:
    """A strip of `max_slice_num` squares that the processor cuts into as many slices (at most its `max_slice_nums`, 9 in
    the public checkpoints) beside an overview of one slice's area; a video of up to 16 frames of one slice each. All slices
    are padded to the longest (models/minicpmv.py: MiniCPMVProcessingInfo, get_vision_hidden_states).
    """
    root, patch = ctx.config.root, _size(vision, "patch_size", 14)
    side, queries = _size(root, "image_size", 448) // patch, _size(root, "query_num", 64)
    strip = _size(root, "max_slice_num", 9)
    cut = min(strip, _size(overrides, "max_slice_nums", 9))
    slices = cut + 1 if cut > 1 else 1
    overview = round(side / math.sqrt(strip)) * round(side * math.sqrt(strip))
    images = slices * queries if limits(ctx).get("image", UNLIMITED) > 0 else 0
    frames = max(1, min((ctx.engine.max_model_len - images) // queries, 16))

    def item(modality: str, count: int, patches: int) -> Item:
        return Item(
            modality=modality,
            tokens=count * queries,
            embeddings=count * queries,
            pixel_elements=count * patches * 3 * patch * patch,
            patches=count * patches,
        )

    return [item("image", slices, max(side * side, overview)), item("video", frames, side * side)]


def _qwen(
    ctx: RankContext,
    vision: Mapping[str, Any],
    overrides: Mapping[str, Any],
    *,
    max_pixels: int,
    video_tokens: int | None,
) -> list[Item]:
    """Images up to max_pixels; videos of as many frame pairs as max_model_len holds, at most 14 frames
    (models/qwen2_vl.py).

    For Qwen3-VL the video size is the processor's alone: 153,600 tokens in a recorded start (its log prints
    the budget).
    """
    patch, merge = _size(vision, "patch_size", 14), _size(vision, "spatial_merge_size", 2)
    temporal = _size(vision, "temporal_patch_size", 2)
    size = overrides.get("size")
    given = overrides.get("max_pixels", size.get("longest_edge") if isinstance(size, Mapping) else None)
    pixels = int(given) if isinstance(given, int) else max_pixels
    image = max(1, pixels // (patch * merge) ** 2)
    if video_tokens is None:
        pairs = max(1, min(ctx.engine.max_model_len // image, 14 // temporal))
        video = image * pairs
    else:
        video = (
            video_tokens if not isinstance(given, int) else max(1, pixels // temporal // (patch * merge) ** 2)
        )
    return [
        _qwen_item("image", image, patch, merge, temporal, True),
        _qwen_item("video", video, patch, merge, temporal, video_tokens is None),
    ]


def _qwen_item(modality: str, tokens: int, patch: int, merge: int, temporal: int, known: bool) -> Item:
    patches = tokens * merge * merge
    return Item(
        modality=modality,
        tokens=tokens,
        embeddings=tokens,
        patches=patches,
        known=known,
        pixel_elements=patches * 3 * temporal * patch * patch,
    )


def _unknown(ctx: RankContext, vision: Mapping[str, Any]) -> Item:
    """A model whose processor is not modelled: one item as large as the batch."""
    patch = _size(vision, "patch_size", 14)
    tokens = ctx.engine.max_num_batched_tokens
    return Item(
        modality="image",
        tokens=tokens,
        embeddings=tokens,
        patches=4 * tokens,
        known=False,
        pixel_elements=4 * tokens * 3 * patch * patch,
    )
