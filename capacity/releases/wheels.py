"""The releases that were read, one row each, and what each wheel pins.

Adding a release is one row here plus what `tools/verify_releases.py` lists for review.
"""

from __future__ import annotations

from vllm_capacity.frozen import dataclass


@dataclass(frozen=True, slots=True)
class Torch:
    """A torch release as its own metadata describes it (Requires-Dist of PyPI's Linux x86-64 wheel).

    CUDA context, cuBLAS workspace and NCCL buffer sizes follow these, not the vLLM release.
    """

    version: str
    cuda: str
    nccl: str


@dataclass(frozen=True, slots=True)
class Wheel:
    """A vLLM wheel that was read, with what its METADATA pins."""

    version: str
    torch: Torch
    flashinfer: str
    transformers: str

    @property
    def pins(self) -> tuple[tuple[str, str], ...]:
        """(("torch", "2.11.0"), ("cuda", ...), ("nccl", ...), ("flashinfer", ...), ("transformers", ...)).

        The last is a requirement, the others are versions.
        """
        return (
            ("torch", self.torch.version),
            ("cuda", self.torch.cuda),
            ("nccl", self.torch.nccl),
            ("flashinfer", self.flashinfer),
            ("transformers", self.transformers),
        )


_TORCH_2_10 = Torch("2.10.0", cuda="12.8", nccl="2.27.5")
_TORCH_2_11 = Torch("2.11.0", cuda="13.0.2", nccl="2.28.9")
_TORCH_2_13 = Torch("2.13.0", cuda="13.0.3", nccl="2.29.7")
_TORCH_2_14 = Torch("2.14.0", cuda="13.0.3", nccl="2.30.7")

_NOT_5_0_TO_5_5 = "!=5.0.*,!=5.1.*,!=5.2.*,!=5.3.*,!=5.4.*,!=5.5.0,>=4.56.0"

WHEELS: tuple[Wheel, ...] = (
    Wheel("0.19.0", _TORCH_2_10, "0.6.6", "<5,>=4.56.0"),
    Wheel("0.19.1", _TORCH_2_10, "0.6.6", _NOT_5_0_TO_5_5),
    Wheel("0.20.0", _TORCH_2_11, "0.6.8.post1", _NOT_5_0_TO_5_5),
    Wheel("0.20.1", _TORCH_2_11, "0.6.8.post1", _NOT_5_0_TO_5_5),
    Wheel("0.20.2", _TORCH_2_11, "0.6.8.post1", _NOT_5_0_TO_5_5),
    Wheel("0.21.0", _TORCH_2_11, "0.6.8.post1", _NOT_5_0_TO_5_5),
    Wheel("0.22.0", _TORCH_2_11, "0.6.11.post2", _NOT_5_0_TO_5_5),
    Wheel("0.22.1", _TORCH_2_11, "0.6.11.post2", _NOT_5_0_TO_5_5),
    Wheel("0.23.0", _TORCH_2_11, "0.6.12", _NOT_5_0_TO_5_5),
    Wheel("0.24.0", _TORCH_2_11, "0.6.12", ">=5.5.3"),
    Wheel("0.25.0", _TORCH_2_11, "0.6.13", ">=5.5.3"),
    Wheel("0.25.1", _TORCH_2_11, "0.6.13", ">=5.5.3"),
    Wheel("0.26.0", _TORCH_2_11, "0.6.14", ">=5.5.3"),
    Wheel("0.27.0", _TORCH_2_13, "0.6.16.post3", ">=5.5.3"),
    Wheel("0.27.1", _TORCH_2_13, "0.6.16.post3", ">=5.5.3"),
    Wheel("0.28.0", _TORCH_2_13, "0.6.16.post3", ">=5.5.3"),
    Wheel("0.29.0", _TORCH_2_13, "0.6.18", ">=5.10.4"),
    Wheel("0.30.0", _TORCH_2_13, "0.6.18.post1", ">=5.10.4"),
    Wheel("0.31.0", _TORCH_2_13, "0.7.0.post1", "<5.18.0,>=5.10.4"),
    Wheel("0.32.0", _TORCH_2_13, "0.7.0.post1", "<5.20.0,>=5.16.1"),
    Wheel("0.33.0", _TORCH_2_14, "0.7.2.post1", "<5.21.0,>=5.16.1"),
)  # fmt: skip
