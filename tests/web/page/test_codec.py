"""The address of the page: every state comes back from its link, and no address breaks the page."""

from __future__ import annotations

import json
import random
import zlib
from base64 import urlsafe_b64encode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm_capacity.web.page.codec import MAX_CONFIG, MAX_QUERY, from_query, to_link
from vllm_capacity.web.page.state import DEFAULT, FIELDS, PageState, Tab

texts = st.text(max_size=40)
states = st.builds(
    PageState, tab=st.sampled_from(Tab), config=st.text(max_size=400), **{
        name: texts for name in FIELDS if name not in ("tab", "config")
    },
)  # fmt: skip


@given(states)
@settings(max_examples=200, deadline=None)
def test_a_link_gives_the_state_back_whatever_was_typed(state: PageState):
    link = to_link(state)
    assert not link.too_long
    decoded = from_query(link.query)
    assert decoded.state == state
    assert decoded.problems == ()


@given(states, states)
@settings(max_examples=50, deadline=None)
def test_a_link_says_all_that_a_change_of_defaults_could_change_where_it_matters(
    state: PageState, defaults: PageState
):
    decoded = from_query(to_link(state).query, defaults)
    assert (decoded.state.model, decoded.state.gpu, decoded.state.release) == (
        state.model,
        state.gpu,
        state.release,
    )


@given(st.text(st.characters(codec=None), max_size=40))
@settings(max_examples=100, deadline=None)
def test_what_is_no_text_breaks_no_link(words: str):
    link = to_link(PageState(flags=words, config=words))
    assert isinstance(from_query(link.query).state, PageState)


@given(st.text(max_size=300))
@settings(max_examples=200, deadline=None)
def test_any_query_gives_a_state_and_never_an_exception(query: str):
    assert isinstance(from_query(query).state, PageState)


@given(st.binary(max_size=200))
@settings(max_examples=100, deadline=None)
def test_any_packed_config_gives_a_state_and_never_an_exception(data: bytes):
    packed = urlsafe_b64encode(data).decode()
    assert isinstance(from_query(f"config={packed}").state, PageState)


def test_what_an_address_names_wrongly_is_said_in_words_and_the_rest_is_kept():
    decoded = from_query("model=Qwen/Qwen3-8B&colour=red&tab=prices&config=%20%20&context=32k")
    assert decoded.state.model == "Qwen/Qwen3-8B"
    assert decoded.state.context == "32k"
    assert decoded.state.tab is Tab.PLAN
    assert len(decoded.problems) == 3
    assert "colour" in decoded.problems[0]


def test_a_real_config_travels_in_a_link():
    values = {"architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "layers": list(range(64))}
    config = json.dumps(values, indent=2)
    state = PageState(config=config)
    link = to_link(state)
    assert len(link.query) < len(config)
    assert from_query(link.query).state == state


def test_a_config_that_is_too_long_for_a_link_is_left_out_and_that_is_said():
    noise = random.Random(1).randbytes(20_000).hex()
    state = PageState(config=noise, context="32k")
    link = to_link(state)
    assert "too long for a link" in link.too_long
    assert len(link.query) <= MAX_QUERY
    assert from_query(link.query).state == PageState(context="32k")


def test_a_short_link_cannot_unpack_to_more_than_a_config_may_have():
    bomb = urlsafe_b64encode(zlib.compress(b"a" * (MAX_CONFIG + 1), 9)).decode()
    decoded = from_query(f"config={bomb}")
    assert decoded.state == DEFAULT
    assert decoded.problems


@pytest.mark.parametrize("query", ["x" * 100_000, "model=" + "a" * 5_000])
def test_an_overlong_address_is_refused_in_words(query: str):
    decoded = from_query(query)
    assert decoded.state == DEFAULT
    assert decoded.problems
