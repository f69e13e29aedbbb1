"""A `celer serve` that belongs to the process that started it: on a free port of 127.0.0.1, and gone when that one is."""
import ctypes
import http.client
import os
import re
import signal
import subprocess
import sys
import threading
import time


def _die_with_parent():
    """In the child. A worker that is killed must leave no server behind, which would keep its GPU."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class CelerProcess:
    """Ready to answer after __init__."""

    def __init__(self, model, flags=(), celer="celer", env=None, seconds=1800):
        command = [celer, "serve", model, "--host", "127.0.0.1", "--port", "0", *flags]
        self.process = subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                        env={**os.environ, **(env or {})}, preexec_fn=_die_with_parent)
        self.port = None
        self.said = []
        self._listening = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()
        end = time.monotonic() + seconds
        self._listening.wait(seconds)
        while not self.healthy():
            if self.process.poll() is not None or time.monotonic() > end:
                self.stop(0)
                raise RuntimeError(f"{' '.join(map(str, command))} is not ready: {''.join(self.said[-5:])}")
            time.sleep(0.1)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def _read(self):
        """The log goes on to that of this process."""
        for line in self.process.stderr:
            if not self.port:
                self.said.append(line)
                if match := re.search(r"listening on https?://[^ ]+:(\d+)", line):
                    self.port = int(match[1])
                    self._listening.set()
            sys.stderr.write(line)
        self._listening.set()

    def healthy(self, path="/health"):
        if self.port is None or self.process.poll() is not None:
            return False
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", path)
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def stop(self, seconds=60):
        """Requests in flight have so many seconds."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
