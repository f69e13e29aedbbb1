"""celer.serve: the server as a context manager, for tests and notebooks."""
from __future__ import annotations

import collections
import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from typing import Any

from ._arguments import NotPickled
from ._command import command, flags, operand


class Server(NotPickled):
    """`celer serve` as a child process that ends with this object, or with this process."""

    def __init__(self, model: str | os.PathLike[str], port: int = 0, timeout: float = 600.0, **options: Any) -> None:
        given = [*flags(options), "--port", str(port)]
        self._process = subprocess.Popen(command("serve", operand("model", model), *given), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                         stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True)
        self._said: collections.deque[str] = collections.deque(maxlen=1000)
        self._changed = threading.Condition()
        self._ended = False
        threading.Thread(target=self._read, name="celer-serve", daemon=True).start()
        try:
            match = self._until(r"listening on (\w+://\S+?);? ", time.monotonic() + timeout)
            self.url: str = match[1].rstrip(";")
            self._until(r"^ready: ", time.monotonic() + timeout)
        except BaseException:
            self.close()
            raise

    @property
    def base_url(self) -> str:
        """What OpenAI's client takes."""
        return self.url + "/v1"

    @property
    def log(self) -> str:
        """The last lines that it wrote."""
        return "".join(list(self._said))

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            with self._changed:
                self._said.append(line)
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _until(self, pattern: str, deadline: float) -> re.Match[str]:
        with self._changed:
            while True:
                for line in self._said:
                    if match := re.search(pattern, line):
                        return match
                if self._ended:
                    raise RuntimeError(f"celer serve ended: {self.log.strip() or 'it said nothing'}")
                if time.monotonic() > deadline:
                    raise TimeoutError(f"celer serve is not ready; it said: {self.log.strip()}")
                self._changed.wait(0.1)

    def close(self) -> None:
        """Ends it: requests in flight are finished for two seconds. Idempotent."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(2)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()
        if self._process.stderr is not None:
            with contextlib.suppress(OSError, ValueError):
                self._process.stderr.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_process") and self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def serve(model: str | os.PathLike[str], *, port: int = 0, timeout: float = 600.0, **options: Any) -> Server:
    """A server for a model, ready when this returns: `with celer.serve("smollm2") as server: OpenAI(base_url=server.base_url)`.

    port 0: any that is free. timeout: seconds until it must be ready. Other arguments are the flags of `celer serve` with
    underscores: context=2048, kv_memory="4GiB", api_key_file="keys.txt"; its `--help` lists them.
    """
    return Server(model, port, timeout, **options)
