"""A celer server for tests: a small model with random weights, a tokenizer and a chat template, on a free port."""
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import threading
import time
import unittest

TEMPLATES = pathlib.Path(__file__).resolve().parent.parent / "chat_templates"
SLOW = 10 if "CELER_SANITIZED" in os.environ else 1  # sanitizers take their time
JSON = {"Content-Type": "application/json"}
SHAPE = ["--layers", "2", "--hidden", "64", "--intermediate", "96", "--vocab", "600", "--heads", "4", "--kv-heads", "2",
         "--head-dim", "32"]


def make_model(celer, folder):
    model = pathlib.Path(folder) / "tiny.gguf"
    subprocess.run([celer, "synth", "llama-3.1-8b", "--weights", "q8_0", "-o", model, *SHAPE], check=True,
                   capture_output=True, timeout=300)
    return model


class Server:
    """Started and ready after __init__; stop() gives the exit code and what it said."""

    def __init__(self, celer, model, *flags, template="chatml.jinja", context=2048, wait=True, port=0, kv="32MiB"):
        command = [celer, "serve", model, "--port", port, "--device", "cpu", "--threads", "1", "--kv-memory", kv, "--context", str(context),
                   *flags]
        if template:
            command += ["--chat-template", TEMPLATES / template]
        self.process = subprocess.Popen([str(part) for part in command], stderr=subprocess.PIPE, text=True,
                                        env={**os.environ, "CELER_CACHE": str(pathlib.Path(model).parent)})
        self.lines = []
        self.said = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()
        match = self.until(r"listening on (https?)://([\d.]+):(\d+)")
        self.scheme, self.host, self.port = match[1], match[2], int(match[3])
        self.url = f"{self.scheme}://{self.host}:{self.port}"
        if wait:
            self.until(r"ready: ")

    def _read(self):
        for line in self.process.stderr:
            with self.said:
                self.lines.append(line)
                self.said.notify_all()
        with self.said:
            self.lines.append(None)
            self.said.notify_all()

    def until(self, pattern, seconds=180):
        """Waits for a line of the log."""
        end = time.monotonic() + SLOW * seconds
        seen = 0
        with self.said:
            while True:
                for line in self.lines[seen:]:
                    if line is None:
                        raise AssertionError("the server ended: " + self.log())
                    if match := re.search(pattern, line):
                        return match
                seen = len(self.lines)
                if not self.said.wait(max(0, end - time.monotonic())) and time.monotonic() > end:
                    raise AssertionError(f"{pattern} was not said: " + self.log())

    def log(self):
        return "".join(line for line in self.lines if line)

    def request(self, method, path, body=None, headers=None, timeout=180):
        """Status, headers and body of one request on a connection of its own."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=SLOW * timeout)
        try:
            data = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
            connection.request(method, path, data, {**({} if data is None else JSON), **(headers or {})})
            response = connection.getresponse()
            return response.status, dict(response.headers), response.read()
        finally:
            connection.close()

    def get(self, path):
        status, _, body = self.request("GET", path)
        return status, json.loads(body)

    def post(self, path, body, **kwargs):
        status, _, data = self.request("POST", path, body, **kwargs)
        return status, json.loads(data)

    def socket(self):
        return socket.create_connection((self.host, self.port), timeout=120)

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def memory(self):
        """Resident bytes."""
        return int(pathlib.Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def metric(self, name):
        text = self.request("GET", "/metrics")[2].decode()
        return sum(float(value) for value in re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", text, re.M))

    def idle(self, seconds=120):
        """Waits until nothing runs and no block is in use."""
        end = time.monotonic() + SLOW * seconds
        while time.monotonic() < end:
            load = self.get("/load")[1]
            if load["server_load"] == 0 and load["running"] == 0 and load["kv_blocks_used"] == 0:
                return
            time.sleep(0.02)
        raise AssertionError(f"not idle: {load}")

    def stop(self, number=signal.SIGTERM, seconds=180):
        self.process.send_signal(number)
        code = self.process.wait(SLOW * seconds)
        return code, self.log()

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.process.stderr.close()


class ServerCase(unittest.TestCase):
    """One server for all tests of a class; `flags` and `template` may be overridden."""
    celer = None
    flags = []
    template = "chatml.jinja"

    @classmethod
    def setUpClass(cls):
        import shutil
        import tempfile
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="celer_serve_"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, True)
        cls.model = make_model(ServerCase.celer, cls.folder)
        cls.server = cls.start(*cls.flags)

    @classmethod
    def start(cls, *flags, **kwargs):
        server = Server(ServerCase.celer, cls.model, *flags, **{"template": cls.template, **kwargs})
        cls.addClassCleanup(server.kill)
        return server
