"""`vllm-capacity web`: the library as an HTTP API and a page.

The server answers from child processes (`pool.py`, `worker.py`), so that nothing that a request asks for runs in the event
loop, a slow request can be stopped, and what a request may touch is held by the process as well (`guard.py`).
"""
