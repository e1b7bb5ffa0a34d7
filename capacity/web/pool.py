"""The worker processes of a server: who may hold how many, who waits, and what happens to a job that takes too long."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from vllm_capacity.web.problems import ProblemError
from vllm_capacity.web.settings import WebSettings
from vllm_capacity.web.worker import command

logger = logging.getLogger(__name__)

READ_AHEAD = 1 << 20
RESTART_SECONDS = (0.0, 1.0, 5.0, 15.0)
"""Pauses before a worker that does not even start is tried again; the last one repeats."""


@dataclass(frozen=True, slots=True)
class Lane:
    """A kind of work: how many jobs of it may wait, and how long one may take."""

    name: str
    waiting: int
    seconds: float
    retry_after: int


class Worker:
    """One child process; takes one job at a time."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, settings: WebSettings) -> Worker:
        """A worker that is ready. Raises EOFError where it ends before it is."""
        process = await asyncio.create_subprocess_exec(
            *command(settings),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=READ_AHEAD,
        )
        worker = cls(process)
        try:
            await worker._answer()
        except BaseException:
            await worker.end()
            raise
        return worker

    @property
    def process_id(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    async def ask(
        self, job: str, head: Mapping[str, Any], body: bytes, seconds: float
    ) -> tuple[dict[str, Any], bytes]:
        """(head of the answer, its body). Raises EOFError where the process ends instead."""
        asked = {"job": job, "head": dict(head), "seconds": seconds, "size": len(body)}
        pipe = self._process.stdin
        assert pipe is not None
        try:
            pipe.write(json.dumps(asked).encode() + b"\n")
            pipe.write(body)
            await pipe.drain()
        except (BrokenPipeError, ConnectionResetError):
            raise EOFError from None
        return await self._answer()

    async def _answer(self) -> tuple[dict[str, Any], bytes]:
        pipe = self._process.stdout
        assert pipe is not None
        line = await pipe.readline()
        if not line:
            raise EOFError
        head: dict[str, Any] = json.loads(line)
        try:
            return head, await pipe.readexactly(head["size"])
        except asyncio.IncompleteReadError:
            raise EOFError from None

    async def end(self) -> None:
        """Stops the process, whatever it does."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()
        await self._process.wait()


class Place:
    """A job's right to a worker, held while its body arrives and until its answer is there."""

    def __init__(self, pool: Pool, lane: Lane) -> None:
        self._pool = pool
        self._lane = lane

    async def run(self, job: str, head: Mapping[str, Any] | None = None, body: bytes = b"") -> bytes:
        """The job's document. Raises ProblemError."""
        return await self._pool._run(self._lane, job, head or {}, body)


class Pool:
    """`settings.workers` processes behind three lanes.

    "page": what the page shows as one types; may take every worker. "plan": the API's plans; together with "slow" (`size`,
    `explain`) they leave one worker to the page, and "slow" alone leaves two. So neither a slow request nor many of them keep
    a plan waiting.
    """

    def __init__(self, settings: WebSettings) -> None:
        self.settings = settings
        self.lanes = {
            "page": Lane("page", settings.waiting, settings.plan_seconds, 1),
            "plan": Lane("plan", settings.waiting, settings.plan_seconds, 1),
            "size": Lane("size", settings.waiting_slow, settings.size_seconds, 10),
            "explain": Lane("explain", settings.waiting_slow, settings.explain_seconds, 10),
        }
        self.waiting = dict.fromkeys(self.lanes, 0)
        """Jobs of each lane that wait or run."""
        self._idle: asyncio.LifoQueue[Worker] = asyncio.LifoQueue()
        self._api = asyncio.Semaphore(max(1, settings.workers - 1))
        self._slow = asyncio.Semaphore(max(1, settings.workers - 2))
        self._tasks: set[asyncio.Task[None]] = set()
        self._started = False
        self._alive: set[Worker] = set()

    @property
    def processes(self) -> list[int]:
        """Ids of the workers that are ready or at work."""
        return [worker.process_id for worker in self._alive]

    @property
    def idle(self) -> int:
        """Workers without a job."""
        return self._idle.qsize()

    def start(self) -> None:
        """Starts the workers in the background; a job that comes first waits for one."""
        if not self._started:
            self._started = True
            self._background(self._fill())

    async def close(self) -> None:
        """Ends all workers."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(worker.end() for worker in self._alive), return_exceptions=True)
        self._alive.clear()
        self._started = False

    async def run(
        self, job: str, head: Mapping[str, Any] | None = None, body: bytes = b"", *, lane: str
    ) -> bytes:
        """A job's document. Raises ProblemError."""
        async with self.place(lane) as place:
            return await place.run(job, head, body)

    @asynccontextmanager
    async def place(self, lane: str) -> AsyncIterator[Place]:
        """A place among those that wait. Raises ProblemError (busy) where there is none left."""
        if self.waiting[lane] >= self.lanes[lane].waiting:
            raise self._busy(self.lanes[lane])
        self.waiting[lane] += 1
        try:
            yield Place(self, self.lanes[lane])
        finally:
            self.waiting[lane] -= 1

    async def _run(self, lane: Lane, job: str, head: Mapping[str, Any], body: bytes) -> bytes:
        self.start()
        async with AsyncExitStack() as held:
            try:
                async with asyncio.timeout(self.settings.wait_seconds):
                    if lane.name in ("size", "explain"):
                        await held.enter_async_context(self._slow)
                    if lane.name != "page":
                        await held.enter_async_context(self._api)
                    while not (worker := await self._idle.get()).alive:
                        self._background(self._replace(worker, AsyncExitStack()))
            except TimeoutError:
                raise self._busy(lane) from None
            return await self._ask(worker, held, lane, job, head, body)

    async def _ask(
        self, worker: Worker, held: AsyncExitStack, lane: Lane, job: str, head: Mapping[str, Any], body: bytes
    ) -> bytes:
        """The answer; `held` is released with the worker, or with the one that takes its place."""
        reusable = False
        try:
            async with asyncio.timeout(lane.seconds):
                answer, document = await worker.ask(job, head, body, lane.seconds)
            reusable = not answer["last"]
        except TimeoutError:
            raise ProblemError(
                "timeout", f"stopped after {lane.seconds:g} s", {"limit": lane.seconds}
            ) from None
        except EOFError:
            raise ProblemError("unexpected", "the calculation ended without an answer") from None
        finally:
            if reusable:
                self._idle.put_nowait(worker)
            else:
                self._background(self._replace(worker, held.pop_all()))
        if answer["ok"]:
            return document
        problem = json.loads(document)
        raise ProblemError(problem["name"], problem["detail"], problem["extra"])

    def _busy(self, lane: Lane) -> ProblemError:
        return ProblemError(
            "busy",
            f"{self.waiting[lane.name]} requests are waiting; try again in {lane.retry_after} s",
            headers={"Retry-After": str(lane.retry_after)},
        )

    async def _fill(self) -> None:
        """One after the other: the first is ready the sooner, and somebody is waiting for it."""
        for _ in range(self.settings.workers):
            await self._add()

    async def _replace(self, worker: Worker, held: AsyncExitStack) -> None:
        async with held:
            self._alive.discard(worker)
            await worker.end()
            await self._add()

    async def _add(self) -> None:
        attempt = 0
        while True:
            await asyncio.sleep(RESTART_SECONDS[min(attempt, len(RESTART_SECONDS) - 1)])
            try:
                worker = await Worker.start(self.settings)
                break
            except (EOFError, OSError) as error:
                logger.error("a worker did not start (%s)", error or "it ended; its message stands above")
                attempt += 1
        self._alive.add(worker)
        self._idle.put_nowait(worker)

    def _background(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
