"""The catalogue of GPUs, its names, and GPUs described by hand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from vllm_capacity.errors import InputError
from vllm_capacity.inputs import gpus, local_gpu
from vllm_capacity.inputs.gpus import DEFAULT_GPU, NVML_EXCESS, custom_device, find_device, list_devices
from vllm_capacity.units import GIB, MIB

FILE = Path(gpus.__file__).with_name("gpus.yaml")
FIELDS = {
    "aliases": list,
    "vendor": str,
    "compute_capability": list,
    "num_sms": int,
    "cuda_total_bytes": int,
    "cuda_total_low_bytes": int,
    "cuda_total_high_bytes": int,
    "nvml_total_bytes": int,
    "derived": bool,
    "bandwidth_bytes_per_second": int,
    "nvlink": bool,
    "integrated": bool,
    "power_watts": int,
    "source": str,
}


def test_every_slice_equals_the_full_parse() -> None:
    full = yaml.safe_load(FILE.read_text())["gpus"]
    assert dict(gpus._entries().items()) == full
    for name, entry in full.items():
        assert gpus._entries().get(name) == entry


def test_every_entry_has_every_field_and_a_source() -> None:
    for name, entry in gpus._entries().items():
        assert list(entry) == list(FIELDS), name
        assert all(type(entry[field]) is kind for field, kind in FIELDS.items()), name
        assert entry["source"], name
        assert entry["vendor"] in ("nvidia", "amd"), name


def test_the_gpus_people_ask_for_are_there() -> None:
    names = [
        "T4",
        "V100",
        "A10G",
        "A10",
        "L4",
        "L40",
        "L40S",
        "A40",
        "A6000",
        "A100-40GB",
        "A100-80GB",
        "A100-PCIE",
        "A800",
        "H100",
        "H100-PCIE",
        "H100-NVL",
        "H200",
        "H20",
        "H800",
        "B200",
        "B300",
        "GB200",
        "GB300",
        "GH200",
        "GH200-144GB",
        "GB10",
        "3090",
        "3090Ti",
        "4080",
        "4090",
        "5080",
        "5090",
        "RTX-6000-Ada",
        "RTX-PRO-6000",
        "A100-40GB-MIG-1g.5gb",
        "H100-80GB-MIG-3g.40gb",
        "H200-141GB-MIG-1g.18gb",
        "MI300X",
        "MI325X",
        "MI355X",
    ]
    assert len({find_device(name).name for name in names}) == len(names)
    assert len(list_devices()) >= 35


def test_totals_are_ordered() -> None:
    for device in list_devices():
        low, high = device.cuda_total_low_bytes, device.cuda_total_high_bytes
        assert low is not None
        assert high is not None
        assert 0 < low <= device.cuda_total_bytes <= high <= device.nvml_total_bytes, device.name
        assert high - low < 0.02 * high or device.integrated, device.name


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        # "Free memory on device (x/y GiB)" of vLLM start-up logs, as printed.
        ("H100-80GB", 79.19),
        ("H200-141GB", 139.8),
        ("L4", 22.03),
        ("A100-40GB", 39.49),
        ("RTX-PRO-6000", 95.01),
        ("RTX-PRO-6000-SERVER", 94.97),
        ("B300", 267.69),
        ("RTX-5090", 31.36),
    ],
)
def test_the_cuda_total_is_what_vllm_prints(name: str, printed: float) -> None:
    assert round(find_device(name).cuda_total_bytes / GIB, 2) == printed


def test_the_h200_total_is_known_to_the_byte() -> None:
    # Nine recorded runs of vLLM 0.26.0 on H200.
    assert find_device("H200").cuda_total_bytes == 150_109_880_320
    assert find_device("H200").nvml_total_bytes == 143_771 * MIB


def test_the_h100_shows_81559_mib_in_nvidia_smi() -> None:
    assert find_device("H100").nvml_total_bytes == 81_559 * MIB
    assert find_device(DEFAULT_GPU).name == "H100-80GB"


def test_the_assumed_distance_of_the_two_totals_lies_within_the_known_ones() -> None:
    known = [
        device.nvml_total_bytes - device.cuda_total_bytes
        for device in list_devices()
        if not (device.derived or device.integrated) and device.vendor == "nvidia"
    ]
    assert len(known) >= 20
    assert 270 * MIB < min(known) < NVML_EXCESS < max(known) < 1080 * MIB


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("h100", "H100-80GB"),
        ("NVIDIA H100 80GB HBM3", "H100-80GB"),
        ("NVIDIA H100 PCIe", "H100-80GB-PCIE"),
        ("nvidia geforce rtx 4090", "RTX-4090"),
        ("RTX4090", "RTX-4090"),
        ("rtx_4090", "RTX-4090"),
        ("Tesla T4", "T4"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA GH200 480GB", "GH200-96GB"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX-6000-ADA"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "H100-80GB-MIG-1g.10gb"),
        ("AMD Instinct MI300X", "MI300X"),
    ],
)
def test_names_are_found_as_people_and_nvidia_smi_write_them(spelling: str, name: str) -> None:
    assert find_device(spelling).name == name


def test_no_name_means_two_gpus() -> None:
    seen: dict[str, str] = {}
    for device in list_devices():
        for name in (device.name, *device.aliases):
            owner = seen.setdefault(gpus._key(name), device.name)
            assert owner == device.name, f"{name} means {owner} and {device.name}"


def test_every_gpu_is_found_under_its_own_name_and_aliases() -> None:
    for device in list_devices():
        for name in (device.name, *device.aliases):
            assert find_device(name) == device


@pytest.mark.parametrize("name", ["H1000", "", "rtx 4091", "x" * 10_000, "H100\n80"])
def test_an_unknown_gpu_is_one_line_with_a_way_out(name: str) -> None:
    with pytest.raises(InputError, match="unknown GPU") as caught:
        find_device(name)
    assert "\n" not in str(caught.value)
    assert "--gpu-memory" in str(caught.value)
    assert len(str(caught.value)) < 300


def test_a_close_name_is_suggested() -> None:
    with pytest.raises(InputError, match="RTX-4090"):
        find_device("rtx 4091")


def test_a_search_finds_by_alias() -> None:
    assert {device.name for device in list_devices("mi3")} == {"MI300X", "MI325X", "MI350X", "MI355X"}
    assert list_devices("no such gpu") == []


# -- described by hand ---------------------------------------------------------------------------------------


def test_a_gpu_described_by_hand_takes_the_rest_from_its_nearest_relative() -> None:
    device = custom_device("24GiB", 8.9)
    assert device.cuda_total_bytes == 24 * GIB
    assert device.compute_capability == (8, 9)
    assert device.num_sms == find_device("RTX-4090").num_sms
    assert "RTX-4090" in device.source
    assert device.derived


def test_a_capability_between_known_ones_takes_its_generation() -> None:
    assert custom_device("32GiB", "8.7").compute_capability == (8, 7)


def test_amd_and_integrated_parts_have_one_total() -> None:
    assert custom_device("120GiB", "12.1").nvml_total_bytes == 120 * GIB
    assert custom_device("192GiB", "9.4").vendor == "amd"


@pytest.mark.parametrize(
    ("memory", "capability", "message"),
    [
        ("24 apples", "8.9", "24 apples"),
        ("1KiB", "8.9", "1GiB to 8TiB"),
        ("99999TiB", "8.9", "1GiB to 8TiB"),
        ("24GiB", "eight", "must look like 8.9"),
        ("24GiB", "6.1", "belongs to no known GPU"),
        ("24GiB", "99.9", "belongs to no known GPU"),
    ],
)
def test_nonsense_is_refused_by_name(memory: str, capability: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        custom_device(memory, capability)


# -- this machine --------------------------------------------------------------------------------------------


def test_without_a_driver_there_is_no_local_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_gpu, "_DEVICE_NODES", ("/dev/no-such-node",))
    assert local_gpu.local_device() is None


def test_a_driver_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_gpu, "_DEVICE_NODES", ("/dev/null",))
    monkeypatch.setattr(local_gpu, "_QUESTION", "import time; time.sleep(60)")
    monkeypatch.setattr(local_gpu, "TIMEOUT_S", 0.2)
    assert local_gpu.local_device() is None


def test_a_driver_that_fails_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_gpu, "_DEVICE_NODES", ("/dev/null",))
    monkeypatch.setattr(local_gpu, "_QUESTION", "import sys; print('x'); sys.exit(3)")
    assert local_gpu.local_device() is None


def test_what_the_driver_says_becomes_a_device() -> None:
    # The driver's answers on an H200: cuDeviceTotalMem, attributes and NVML's totals.
    facts = {
        "name": "NVIDIA H200", "total": 150_109_880_320, "count": 2, "sms": 132, "major": 9, "minor": 0,
        "integrated": 0, "nvml_total": 143_771 * MIB, "nvml_used": 605 * MIB,
    }  # fmt: skip
    found = local_gpu._describe(facts)
    assert found.count == 2
    assert found.used_bytes == 605 * MIB
    assert found.device.name == "NVIDIA H200"
    assert found.device.compute_capability == (9, 0)
    assert found.device.nvml_total_bytes == 143_771 * MIB
    assert not found.device.derived
    assert found.device.nvlink


@pytest.mark.gpu
def test_the_local_gpu_answers_within_the_time_limit() -> None:
    found = local_gpu.probe()
    assert found is not None
    assert found.device.cuda_total_bytes > GIB
    assert found.device.nvml_total_bytes >= found.device.cuda_total_bytes
