"""Releases are planned by exact version; their tables are consistent, and docs say what they say."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from vllm_capacity.errors import InputError
from vllm_capacity.releases import get_release, newest_release, supported_releases
from vllm_capacity.releases.features import FEATURES
from vllm_capacity.releases.release import version_key
from vllm_capacity.releases.wheels import WHEELS

ROOT = Path(__file__).parents[2]


def test_every_release_on_pypi_from_0_19_to_0_33_is_read():
    """`pip index versions vllm` on 2026-11-30 lists these from 0.19.0 on."""
    assert supported_releases() == (
        "0.19.0", "0.19.1", "0.20.0", "0.20.1", "0.20.2", "0.21.0", "0.22.0", "0.22.1", "0.23.0", "0.24.0",
        "0.25.0", "0.25.1", "0.26.0", "0.27.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0",
        "0.33.0",
    )  # fmt: skip
    assert newest_release().version == "0.33.0"


@pytest.mark.parametrize(
    ("version", "nearest"),
    [
        ("0.26.1rc1.dev608+g99a1", "0.26.0 and 0.27.0"),
        ("0.18.1", "0.19.0"),
        ("0.34.0", "0.33.0"),
        ("0.27", "0.27.0 and 0.27.1"),
        ("0.28.0.post1", "0.28.0 and 0.29.0"),
    ],
)
def test_a_release_that_was_not_read_is_refused_by_name(version, nearest):
    with pytest.raises(InputError) as refusal:
        get_release(version)
    assert f"vLLM {version}" in str(refusal.value)
    assert f"nearest read: {nearest} (" in str(refusal.value)


def test_what_is_no_version_is_refused():
    with pytest.raises(InputError, match="'nightly' is not a vLLM version"):
        get_release("nightly")


def test_an_image_tag_names_its_release():
    assert get_release("v0.26.0") == get_release("0.26.0")


def test_an_unknown_feature_is_an_error_not_false():
    with pytest.raises(KeyError):
        get_release("0.26.0").has("no_such_feature")


# METADATA of each wheel (torch, FlashInfer) and of the torch wheel (NCCL).
@pytest.mark.parametrize(
    ("version", "pins"),
    [
        ("0.19.0", {"torch": "2.10.0", "cuda": "12.8", "nccl": "2.27.5", "flashinfer": "0.6.6"}),
        ("0.26.0", {"torch": "2.11.0", "cuda": "13.0.2", "nccl": "2.28.9", "flashinfer": "0.6.14"}),
        ("0.27.0", {"torch": "2.13.0", "cuda": "13.0.3", "nccl": "2.29.7", "flashinfer": "0.6.16.post3"}),
        ("0.33.0", {"torch": "2.14.0", "cuda": "13.0.3", "nccl": "2.30.7", "flashinfer": "0.7.2.post1"}),
    ],
)
def test_pins_are_those_of_the_wheel(version, pins):
    assert pins.items() <= dict(get_release(version).pins).items()


def test_features_have_one_row_each_and_name_releases_that_were_read():
    names = [feature.name for feature in FEATURES]
    assert len(names) == len(set(names))
    for feature in FEATURES:
        assert {feature.since, feature.until} - {None} <= set(supported_releases()), feature
        assert (feature.since, feature.until) != (None, None), feature
        if feature.since and feature.until:
            assert version_key(feature.since) <= version_key(feature.until), feature
        assert feature.source, feature
        assert feature.meaning, feature


# First and last releases that decide what public runs log; tools/verify_releases.py finds them in the wheels.
@pytest.mark.parametrize(
    ("feature", "first", "last"),
    [
        ("utilization_default_092", "0.20.0", "0.33.0"),
        ("tokens_from_concurrency", "0.20.1", "0.33.0"),
        ("load_max_split_size", "0.21.0", "0.33.0"),
        ("v2_profiles_encoder", "0.27.0", "0.33.0"),
        ("consumed_accounting", "0.27.0", "0.33.0"),
        ("gguf", "0.19.0", "0.23.0"),
        ("mamba_mode_all", "0.19.0", "0.31.0"),
    ],
)
def test_a_feature_holds_from_its_first_to_its_last_release(feature, first, last):
    having = [version for version in supported_releases() if get_release(version).has(feature)]
    assert (having[0], having[-1]) == (first, last)
    assert having == [
        v for v in supported_releases() if version_key(first) <= version_key(v) <= version_key(last)
    ]


def test_the_page_in_docs_is_what_the_tables_say(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    written = runpy.run_path(str(ROOT / "tools" / "write_release_docs.py"))["page"]()
    assert (ROOT / "docs" / "releases.md").read_text(encoding="utf-8") == written, (
        "run tools/write_release_docs.py"
    )


def test_wheels_are_listed_oldest_first():
    keys = [version_key(wheel.version) for wheel in WHEELS]
    assert keys == sorted(set(keys))
