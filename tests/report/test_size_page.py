"""The page of `size` says what its JSON says."""

from __future__ import annotations

from reading_pages import Page, text
from sizing_pages import SIZE_COMMAND, curves, no_gpu, no_gpu_page, sized, sized_page
from vllm_capacity.report.html import size_page
from vllm_capacity.report.size_data import answer_to_dict

SHOWN = 6


def test_the_first_row_is_the_verdict():
    row = sized().rows[0]
    (banner,) = [e for e in sized_page().all("div") if (e.get("class") or "").startswith("verdict")]
    assert f"{row.purchase.gpus_bought} × {row.device.name}" in text(banner)
    assert f"{row.sequences:,} requests at once" in text(banner)
    assert "64 requests of up to 32,768 tokens at once are asked" in text(banner)


def test_every_number_of_the_rows_is_on_the_page():
    document = answer_to_dict(sized())
    wanted: set[float] = {document["demand"]["sequences"], document["demand"]["longest_tokens"]}
    for row in document["rows"][:SHOWN]:
        wanted |= {row["sequences"], row["headroom"], row["total_kv_cache_size_tokens"], row["power_watts"]}
        wanted.add(row["decode_tokens_per_second_ceiling"])
    first = document["rows"][0]
    wanted |= {
        first[key] for key in ("kv_cache_size_tokens", "max_concurrency", "margin_bytes_per_gpu", "gpus_used")
    }
    wanted |= {term.n_bytes for rank in sized().rows[0].plan.ranks for term in rank.terms}
    assert wanted - sized_page().values == set()


def test_rows_stand_in_their_order_with_their_layout():
    rows = sized_page().table("Every row holds the demand")[1:]
    assert len(rows) == SHOWN
    for shown, row in zip(rows, sized().rows, strict=False):
        assert shown[0].startswith(f"{row.purchase.gpus_bought} × {row.device.name}")
        assert row.model == sized().question.models[0].name or row.model in shown[0]
        assert shown[1].startswith(f"{row.purchase.replicas} × tp{row.layout.tp}")
        assert shown[2] == row.args.kv_cache_dtype
    assert f"{len(sized().rows) - SHOWN} more rows are not shown" in text(sized_page().root)


def test_every_row_has_its_serve_line():
    words = text(sized_page().root)
    for row in answer_to_dict(sized())["rows"][:SHOWN]:
        assert row["command"] in words
    assert sized_page().commands == [answer_to_dict(sized())["rows"][0]["command"], SIZE_COMMAND]


def test_every_curve_is_drawn_and_written():
    rows = sized_page().table("Every point of the chart")
    assert rows[0][1:] == [curve.name for curve in curves()]
    written = {int(row[0].replace(",", "")): row[1:] for row in rows[1:]}
    for column, curve in enumerate(curves()):
        for length, sequences in zip(curve.lengths, curve.sequences, strict=True):
            assert written[length][column] == f"{sequences:,}"
    assert len(sized_page().all("polyline")) == len(curves())


def test_what_flips_the_answer_is_told():
    assert sized().sensitivities
    rows = sized_page().table("Each assumption of the first row")[1:]
    assert len(rows) == len(sized().sensitivities)
    for row, item in zip(rows, sized().sensitivities, strict=True):
        assert item.last in row[1] or not item.flips or item.beyond[0] in row[1]


def test_where_nothing_holds_it_the_page_says_why():
    assert not no_gpu().rows
    assert "No GPU holds it" in text(no_gpu_page().root)
    rows = no_gpu_page().table("The layout that came closest")[1:]
    assert rows == [[gpu, " ".join(reason.split())] for gpu, reason in no_gpu().left_out]


def test_equal_input_gives_an_equal_page():
    assert size_page(sized(), SIZE_COMMAND, curves=curves(), top=SHOWN) == sized_page().source


def test_a_page_without_curves_is_whole():
    bare = Page(size_page(sized(), SIZE_COMMAND))
    assert not bare.all("polyline")
    assert bare.table("Every row holds the demand")
