"""A program on a pseudo terminal, as a person uses it: types keys and waits for words."""
import os
import pty
import select
import signal
import termios
import time


class Terminal:
    def __init__(self, program, *args, timeout=60, **env):
        self.timeout = timeout
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update(env)
            os.execv(program, [program, *map(str, args)])
        self.seen = ""

    def until(self, word, timeout=None):
        timeout = timeout or self.timeout
        end = time.monotonic() + timeout
        while word not in self.seen:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.fd], [], [], left)[0]:
                raise AssertionError(f"no '{word}' within {timeout} s in:\n{self.seen!r}")
            try:
                self.seen += os.read(self.fd, 65536).decode(errors="replace")
            except OSError:
                raise AssertionError(f"ended before '{word}':\n{self.seen!r}") from None
        before, _, self.seen = self.seen.partition(word)
        # libedit shows its prompt a moment before it takes keys one by one; a Ctrl-D in that moment would be lost. (A dumb
        # terminal never gets there.)
        end = time.monotonic() + 1
        while word == "> " and termios.tcgetattr(self.fd)[3] & termios.ICANON and time.monotonic() < end:
            time.sleep(0.01)
        return before

    def type(self, text):
        os.write(self.fd, text.encode())

    def close(self):
        end = time.monotonic() + 30
        while time.monotonic() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                os.close(self.fd)
                return os.waitstatus_to_exitcode(status)
            if select.select([self.fd], [], [], 0.05)[0]:
                try:
                    os.read(self.fd, 65536)
                except OSError:
                    pass
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        raise AssertionError("did not end")
