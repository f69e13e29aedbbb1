#!/usr/bin/env python3
"""celer chat on a terminal: chat_test.py CELER. Editing, history, Ctrl-C and Ctrl-D as people expect them; and in a pipe."""
import json
import os
import pathlib
import shutil
import stat
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from terminal import Terminal  # noqa: E402

CELER = None
TEMPLATE = pathlib.Path(__file__).resolve().parent.parent / "chat_templates" / "chatml.jinja"
SHAPE = ["--layers", "2", "--hidden", "64", "--intermediate", "96", "--vocab", "600", "--heads", "4", "--kv-heads", "2",
         "--head-dim", "32"]
UP, LEFT, HOME = "\x1b[A", "\x1b[D", "\x1b[H"


class ChatCase(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="celer_chat_"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, True)
        cls.model = cls.folder / "model.gguf"
        subprocess.run([CELER, "synth", "llama-3.1-8b", "--weights", "q8_0", "-o", cls.model, *SHAPE], check=True,
                       capture_output=True, timeout=60)

    def setUp(self):
        self.cache = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        self.history = self.cache / "chat_history"
        self.saved = self.cache / "saved.json"

    def flags(self, tokens=2):
        return ["chat", self.model, "--device", "cpu", "-n", str(tokens), "--context", str(tokens + 1000),
                "--temperature", "0", "--chat-template", TEMPLATE]

    def start(self, tokens=2, **env):
        chat = Terminal(CELER, *self.flags(tokens), CELER_CACHE=str(self.cache), **{"TERM": "xterm", "LC_ALL": "C.UTF-8", **env})
        chat.until("> ")
        return chat

    # What was said, in the order it was said.
    def questions(self, chat):
        self.saved.unlink(missing_ok=True)
        chat.type(f"/save {self.saved}\n")
        chat.until("saved ")
        chat.until("> ")
        return [m["content"] for m in json.loads(self.saved.read_text()) if m["role"] == "user"]

    def say(self, chat, keys):
        chat.type(keys + "\n")
        chat.until("prompt tokens")  # the answer itself is noise, and may hold anything
        chat.until("]")
        chat.until("> ")


class Editing(ChatCase):
    def test_editing_and_letters_of_several_bytes(self):
        chat = self.start()
        self.say(chat, "helo" + LEFT + "l")
        self.say(chat, "grüße" + LEFT + "\x7f" + "ß" + HOME + "→")  # an arrow key and a backspace each take one letter
        self.say(chat, "ab\\\ncd")
        self.assertEqual(self.questions(chat), ["hello", "→grüße", "ab\ncd"])
        chat.type("\x04")
        self.assertEqual(chat.close(), 0)

    def test_history(self):
        chat = self.start()
        self.say(chat, "première")
        self.say(chat, "second")
        self.say(chat, UP + UP + "!")
        self.assertEqual(self.questions(chat), ["première", "second", "première!"])
        chat.type("/exit\n")
        self.assertEqual(chat.close(), 0)
        self.assertEqual(stat.S_IMODE(self.history.stat().st_mode), 0o600)
        self.assertEqual(self.history.read_text().splitlines()[:3], ["première", "second", "première!"])
        # The next conversation knows it, and searches it.
        chat = self.start()
        self.say(chat, UP + UP + UP)
        chat.type("\x12seco")
        chat.until("second")
        self.say(chat, "\x1b")
        self.assertEqual(self.questions(chat), ["première!", "second"])
        chat.type("\x04")
        self.assertEqual(chat.close(), 0)

    def test_the_history_does_not_grow_for_ever(self):
        self.history.write_text("".join(f"line {i}\n" for i in range(5000)))
        self.history.chmod(0o644)
        chat = self.start()
        self.say(chat, UP)
        self.assertEqual(self.questions(chat), ["line 4999"])
        chat.type("\x04")
        self.assertEqual(chat.close(), 0)
        lines = self.history.read_text().splitlines()
        self.assertLess(len(lines), 1100)
        self.assertEqual(stat.S_IMODE(self.history.stat().st_mode), 0o600)

    def test_a_history_that_cannot_be_kept(self):
        self.history.mkdir()
        chat = self.start()
        self.say(chat, "hello")
        self.assertEqual(self.questions(chat), ["hello"])
        chat.type("\x04")
        self.assertEqual(chat.close(), 0)


class Keys(ChatCase):
    def test_ctrl_c_at_the_prompt(self):
        chat = self.start()
        chat.type("not meant")
        chat.until("not meant")
        chat.type("\x03")  # drops the line and warns of nothing
        chat.until("^C")
        chat.until("> ")
        self.say(chat, "meant")
        self.assertEqual(self.questions(chat), ["meant"])
        chat.type("\x03")
        chat.until("Ctrl-C again or Ctrl-D leaves")
        chat.until("> ")
        chat.type("\x03")
        self.assertEqual(chat.close(), 0)

    def test_ctrl_c_stops_an_answer(self):
        chat = self.start(tokens=100000)  # minutes on any machine
        chat.type("hello\n")
        chat.until("\n")
        time.sleep(0.5)  # long enough to fill the terminal's buffer: Ctrl-C then meets a write that waits
        chat.type("\x03")
        chat.until("stopped]")
        chat.until("> ")
        chat.type("\x04")
        self.assertEqual(chat.close(), 0)

    def test_ctrl_d_with_text_does_not_leave(self):
        chat = self.start()
        chat.type("abc\x04")
        time.sleep(0.2)
        self.say(chat, "d")
        self.assertEqual(self.questions(chat), ["abcd"])
        chat.type("\x04")
        self.assertEqual(chat.close(), 0)

    def test_without_a_capable_terminal(self):
        chat = self.start(TERM="dumb")
        self.say(chat, "hello")
        self.assertEqual(self.questions(chat), ["hello"])
        chat.type("\x04")
        self.assertEqual(chat.close(), 0)
        self.assertFalse(self.history.exists())


class Piped(ChatCase):
    def test_lines_from_a_pipe(self):
        done = subprocess.run([CELER, *map(str, self.flags())], input=f"one\ntwo\\\nthree\n/save {self.saved}\n", text=True,
                              env={**os.environ, "CELER_CACHE": str(self.cache)}, capture_output=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        said = [m["content"] for m in json.loads(self.saved.read_text()) if m["role"] == "user"]
        self.assertEqual(said, ["one", "two\nthree"])
        self.assertNotIn("> ", done.stdout + done.stderr)
        self.assertFalse(self.history.exists())


if __name__ == "__main__":
    CELER = os.path.abspath(sys.argv.pop(1))
    # A build without libedit says nothing of it.
    if "chat_history" not in subprocess.run([CELER, "chat", "--help"], capture_output=True, text=True).stdout:
        sys.exit(77)
    unittest.main()
