"""A small HTTP server as the replicas of a service, and a client that loads it and retries connects only.

The server answers each request with its revision. After SIGTERM it serves for another moment, so that clients learn
that it leaves, then ends what it has begun, then exits. The client reads the addresses of replicas from the control
plane, as a user's own client would.
"""

import asyncio
import contextlib
import json
import random
import sys

from shoal.core.errors import ShoalError
from shoal.model.jobs import JOB_LABEL

SERVER = """
import asyncio, os, signal, sys
word, leaves_after = sys.argv[1], float(sys.argv[2])
async def answer(reader, writer):
    await reader.readuntil(b"\\r\\n\\r\\n")
    await asyncio.sleep(0.02)
    writer.write(b"HTTP/1.0 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n%s" % (len(word), word.encode()))
    await writer.drain()
    writer.close()
async def main():
    stop, begun = asyncio.Event(), set()
    async def one(reader, writer):
        begun.add(task := asyncio.current_task())
        try:
            await answer(reader, writer)
        finally:
            begun.discard(task)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    server = await asyncio.start_server(one, "127.0.0.1", int(os.environ["SHOAL_PORT_HTTP"]))
    await stop.wait()
    await asyncio.sleep(leaves_after)
    server.close()
    await asyncio.gather(*begun, return_exceptions=True)
asyncio.run(main())
"""
LEAVES_AFTER = 1.0


def service(word, *, count=10, parallel=3, on_failure="revert", settle="200ms"):
    """The spec of a service whose replicas answer with a word; `bad` ends at once."""
    bad = ["sh", "-c", "echo no such model >&2; exit 3"]
    good = [sys.executable, "-u", "-c", SERVER, word, str(LEAVES_AFTER)]
    return json.dumps(
        {
            "count": count,
            "update": {"parallel": parallel, "settle": settle, "deadline": "60s", "on_failure": on_failure},
            "workload": {
                "type": "process",
                "resources": {"cpu_millicores": 20, "memory_mb": 32},
                "process": {
                    "command": bad if word == "bad" else good,
                    "ports": [{"name": "http"}],
                    "readiness": {"tcp_port": "http", "interval": "50ms"},
                    "restart": {"policy": "always", "delay": "700ms"},
                    "stop": {"grace": "20s"},
                },
            },
        }
    ).encode()


class Load:
    """Asks replicas again and again, each time one at random."""

    def __init__(self, control, job_id):
        self._control = control
        self._job_id = job_id
        self._addresses = {}
        self._tasks = []
        #: Answers by word, and requests that were sent to a replica and not answered, with its node.
        self.answers = {}
        self.lost = []
        self.refused = 0

    async def __aenter__(self):
        await self._look()
        self._tasks = [asyncio.ensure_future(each) for each in (self._follow(), *(self._ask() for _ in range(4)))]
        return self

    async def __aexit__(self, *_):
        for task in self._tasks:
            task.cancel()
        for outcome in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome

    async def answered(self, word, count):
        """Wait until so many more answers have this word."""
        wanted = self.answers.get(word, 0) + count
        async with asyncio.timeout(40):
            while self.answers.get(word, 0) < wanted:
                await asyncio.sleep(0.02)

    async def _look(self):
        views = await self._control.list_workloads()
        found = {
            view.workload_id: (view.run.ports["http"], view.assigned_node_id)
            for view in views
            if view.labels.get(JOB_LABEL) == self._job_id
            and view.status == "Running"
            and view.run is not None
            and view.run.ports.get("http")
        }
        self._addresses = found or self._addresses

    async def _follow(self):
        while True:
            with contextlib.suppress(ShoalError):  # without a control plane the last addresses count
                await self._look()
            await asyncio.sleep(0.1)

    async def _ask(self):
        while True:
            port, node = random.choice(list(self._addresses.values()))
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                self.refused += 1
                await asyncio.sleep(0.01)
                continue
            try:
                writer.write(b"GET / HTTP/1.0\r\n\r\n")
                head, _, word = (await reader.read()).partition(b"\r\n\r\n")
                size = head.rpartition(b": ")[2]
                if not size or len(word) != int(size):
                    self.lost.append((node, "the answer was cut"))
                else:
                    self.answers[word.decode()] = self.answers.get(word.decode(), 0) + 1
            except OSError as error:
                self.lost.append((node, repr(error)))
            finally:
                writer.close()
            await asyncio.sleep(0.02)


async def progress_of(control, job_id):
    """What the engine remembers of a service."""
    return json.loads((await control.get_job(job_id)).progress or b"{}")


async def revisions_of(control, job_id):
    """The stored revision of each replica."""
    views = await control.list_workloads()
    return sorted(view.revision_id for view in views if view.labels.get(JOB_LABEL) == job_id)
