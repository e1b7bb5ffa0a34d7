"""Gemma 3n's vision tower: MobileNetV5 as the timm library builds `mobilenetv5_300m_enc`, whole on every rank.

Source: timm's mobilenetv5.py through transformers' TimmWrapperModel (gemma3n_mm.py:617, vLLM 0.33.0); the shapes were read
off that class. The config names the architecture only.
"""

from __future__ import annotations

from vllm_capacity.architecture.modules import Module, Placed, Tensor
from vllm_capacity.architecture.vision import everywhere
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.model_config import ModelConfig, SubConfig

SHAPES: dict[str, tuple[tuple[tuple[int, ...], int], ...]] = {
    "mobilenetv5_300m_enc": (
        ((64, 3, 3, 3), 1), ((64,), 2), ((256, 64, 3, 3), 1), ((256,), 16), ((128, 256, 1, 1), 1), ((128,), 4),
        ((512, 128, 3, 3), 2), ((512,), 2), ((128, 512, 1, 1), 2), ((128, 1, 3, 3), 1), ((768, 128, 1, 1), 1),
        ((768,), 2), ((768, 1, 5, 5), 1), ((256, 768, 1, 1), 1), ((256, 1, 5, 5), 3), ((1024, 256, 1, 1), 4),
        ((1024,), 4), ((256, 1024, 1, 1), 4), ((256, 1, 3, 3), 2), ((1536, 256, 1, 1), 1), ((1536,), 2),
        ((1536, 1, 5, 5), 1), ((640, 1536, 1, 1), 1), ((640,), 111), ((640, 1, 5, 5), 8),
        ((2560, 640, 1, 1), 7), ((2560,), 26), ((640, 2560, 1, 1), 7), ((640, 640, 1, 1), 2),
        ((768, 640, 1, 1), 14), ((640, 1, 3, 3), 28), ((64, 640, 1, 1), 28), ((640, 768, 1, 1), 14),
        ((1280, 640, 1, 1), 14), ((1280,), 92), ((640, 1280, 1, 1), 14), ((3840, 640, 1, 1), 1), ((3840,), 3),
        ((3840, 1, 5, 5), 1), ((1280, 3840, 1, 1), 1), ((1536, 1280, 1, 1), 19), ((96, 1280, 1, 1), 38),
        ((1280, 1536, 1, 1), 19), ((2560, 1280, 1, 1), 19), ((1280, 2560, 1, 1), 19), ((3840, 1920, 1, 1), 1),
        ((2048, 3840, 1, 1), 1), ((2048,), 2),
    ),
}  # fmt: skip
"""Shape of a parameter -> how many the tower has: convolutions, norms and layer scales."""


def mobilenet(config: ModelConfig, vision: SubConfig) -> tuple[Placed, ...]:
    """The tower; InputError for another architecture of timm."""
    name = vision.get("architecture", "mobilenetv5_300m_enc")
    if not isinstance(name, str) or name not in SHAPES:
        raise InputError(f"{config.name}: vision_config: timm architecture {name!r:.60} is not modelled")
    placed: tuple[Placed, ...] = ()
    for number, (shape, count) in enumerate(SHAPES[name]):
        module: Module = Tensor(name=f"vision_tower.timm_model.{number}", shape=shape)
        placed += everywhere((module,), count)
    return placed
