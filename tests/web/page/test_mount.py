"""The page as the application serves it, without a browser."""

from __future__ import annotations

from vllm_capacity.web.settings import WebSettings

from web.serving import serving, wait_until

# a page that is asked for before any worker is up comes without its answer, which then follows
LINK = "/?model=Qwen/Qwen3-8B&gpu=L40S&vllm=0.26.0&context=8k"


def test_two_applications_of_one_process_serve_the_page_one_after_the_other():
    for settings in (WebSettings(workers=1), WebSettings(workers=1, root_path="/capacity")):
        with serving(settings) as served:
            wait_until(lambda: "It starts" in served.client.get(settings.root_path + LINK).text)  # noqa: B023
            first = served.client.get(settings.root_path + LINK)
            assert first.status_code == 200
            assert "Qwen/Qwen3-8B on 1 × L40S" in first.text
            assert "http://" not in first.text.replace("http://www.w3.org/", "")
            assert "https://" not in first.text.replace("https://www.w3.org/", "")
            assert served.get("/healthz").json()["status"] == "ok"


def test_an_address_nobody_serves_is_not_the_page():
    with serving(WebSettings(workers=1)) as served:
        assert served.client.get("/no-such-page").status_code == 404
        missing = served.client.get("/api/v1/no-such-thing")
        assert missing.status_code == 404
        assert missing.headers["content-type"].startswith("application/problem+json")
