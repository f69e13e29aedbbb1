#!/usr/bin/env python3
"""Ctrl-C and SIGTERM at any moment: signals_test.py CELER. Every command ends soon, with 130 or 143, and leaves nothing half done;
a conversation goes on. What would otherwise go on takes minutes, so a signal that is not obeyed is seen by the clock."""
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

CELER = None
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
NETWORK = next((ROOT / "tests" / "golden" / "networks").rglob("*.onnx"))
TEMPLATE = ROOT / "tests" / "chat_templates" / "chatml.jinja"
SHAPE = ["--layers", "4", "--hidden", "512", "--intermediate", "1024", "--vocab", "600", "--heads", "8", "--kv-heads", "8", "--head-dim",
         "64"]
LARGE = ["--layers", "8", "--hidden", "1024", "--intermediate", "2048", "--vocab", "600", "--heads", "8", "--kv-heads", "8",
         "--head-dim", "128"]
LONG = 60000   # tokens of a prompt: minutes of attention on any CPU
SOON = 30      # seconds; the machine may be busy


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="celer_signals_"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, True)
        cls.env = {**os.environ, "CELER_CACHE": str(cls.folder / "cache"), "TMPDIR": str(cls.folder)}
        cls.model = cls.folder / "model.gguf"
        cls.synth(cls.model, "q8_0", SHAPE)
        cls.prompt = cls.folder / "prompt.txt"
        cls.prompt.write_text("x y " * (LONG // 4))

    @classmethod
    def synth(cls, path, weights, shape):
        subprocess.run([CELER, "synth", "llama-3.1-8b", "--weights", weights, "-o", path, *shape], check=True, capture_output=True,
                       timeout=120, env=cls.env)

    def start(self, *args, **kwargs):
        # A shell that starts its tests in the background ignores SIGINT for them.
        kwargs = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": self.env, **kwargs}
        child = subprocess.Popen([CELER, *map(str, args)], preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), **kwargs)
        self.addCleanup(self.reap, child)
        # Until main() has set its handlers a signal ends the process as the kernel does: a busy machine may take long to get there.
        self.wait_for(lambda: self.catches(child, signal.SIGINT, signal.SIGTERM), child, "handlers of signals")
        return child

    @staticmethod
    def catches(child, *numbers):
        caught = re.search(r"^SigCgt:\t([0-9a-f]+)$", pathlib.Path(f"/proc/{child.pid}/status").read_text(), re.MULTILINE)
        return caught is not None and all(int(caught[1], 16) >> (number - 1) & 1 for number in numbers)

    @staticmethod
    def reap(child):
        child.kill()
        child.wait()
        for stream in (child.stdin, child.stdout, child.stderr):
            if stream:
                stream.close()

    def wait_for(self, happened, child, what):
        end = time.monotonic() + 60
        while not happened():
            self.assertIsNone(child.poll(), f"it ended before {what}")
            self.assertLess(time.monotonic(), end, f"no {what}")
            time.sleep(0.002)

    def expect_end(self, child, number):
        child.send_signal(number)
        child.wait(timeout=SOON)  # not communicate(): the end of its input would end it, too
        _, error = child.communicate()
        self.assertEqual(child.returncode, 128 + number, error.decode())
        self.assertEqual(list(self.folder.rglob("*.partial-*")), [])
        return error.decode()


class Ends(Case):
    def test_at_any_moment(self):
        command = ["run", self.model, "--file", self.prompt, "--raw", "--device", "cpu", "--context", LONG + 1000, "--chunk", 64, "-q"]
        for i, delay in enumerate((0, 0.05, 0.2, 0.4, 0.8, 1.6)):  # while it starts, loads, packs, computes
            number = (signal.SIGINT, signal.SIGTERM)[i % 2]
            with self.subTest(delay=delay, signal=number):
                child = self.start(*command)
                time.sleep(delay)
                self.expect_end(child, number)

    def test_the_prompt_is_not_computed_to_its_end(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            trace = self.folder / f"trace{number}.json"
            child = self.start("run", self.model, "--file", self.prompt, "--raw", "--device", "cpu", "--context", LONG + 1000, "--chunk",
                               64, "--json", "--trace", trace)
            self.wait_for(lambda: trace.exists() and b'"schedule"' in trace.read_bytes(), child, "step")
            child.send_signal(number)
            out, error = child.communicate(timeout=SOON)
            self.assertEqual(child.returncode, 128 + number, error.decode())
            self.assertEqual(json.loads(out)["tokens"], [])  # it was the prompt that was interrupted
            self.assertEqual(json.loads(out)["finish_reason"], "cancelled")
            json.loads(trace.read_text())

    def test_a_prompt_that_never_comes(self):
        for command in (["run", self.model, "-"], ["tokenize", self.model, "--file", "-"]):
            child = self.start(*command, stdin=subprocess.PIPE)
            time.sleep(0.5)
            self.expect_end(child, signal.SIGINT)

    def test_ppl(self):
        child = self.start("ppl", self.model, self.prompt, "--device", "cpu", "--window", 20000, "--chunk", 64)
        time.sleep(1)
        self.expect_end(child, signal.SIGTERM)

    def test_eval_and_the_processes_that_measure(self):
        child = self.start("eval", self.model, self.prompt, "--device", "cpu", "--window", 10000, "--windows", 1, "--exact-rows",
                           self.folder / "rows")
        children = pathlib.Path(f"/proc/{child.pid}/task/{child.pid}/children")
        time.sleep(1)
        self.wait_for(lambda: children.read_text().split(), child, "process that measures")
        measuring = children.read_text().split()
        self.expect_end(child, signal.SIGTERM)
        end = time.monotonic() + SOON
        while any(pathlib.Path(f"/proc/{pid}/exe").exists() for pid in measuring) and time.monotonic() < end:
            time.sleep(0.01)
        self.assertFalse([pid for pid in measuring if pathlib.Path(f"/proc/{pid}/exe").exists()])
        self.assertFalse((self.folder / "rows").exists())

    def test_bench_and_graph(self):
        for command in (["bench", self.model, "--device", "cpu", "--prompt", "20000", "--tokens", "2"],
                        ["graph", "bench", NETWORK, "--repeat", 100000]):
            with self.subTest(command[0]):
                child = self.start(*command)
                time.sleep(0.7)
                self.expect_end(child, signal.SIGINT)

    def test_pull_from_a_hub_that_does_not_answer(self):
        with socket.create_server(("127.0.0.1", 0)) as hub:
            self.env = {**self.env, "HF_ENDPOINT": f"http://127.0.0.1:{hub.getsockname()[1]}/"}
            for number in (signal.SIGINT, signal.SIGTERM):
                child = self.start("pull", "hf:some/model")
                connection, _ = hub.accept()
                self.expect_end(child, number)
                connection.settimeout(SOON)
                while connection.recv(4096):  # curl ends with it
                    pass
                connection.close()

    def test_a_second_signal_ends_at_once_what_takes_its_time(self):
        requests = self.folder / "requests.jsonl"
        requests.write_text('{"prompt": "a", "max_tokens": 100000, "ignore_eos": true}\n' * 2)
        for numbers in ((signal.SIGINT, signal.SIGINT), (signal.SIGTERM,)):
            out = self.folder / "answers.jsonl"
            child = self.start("batch", self.model, requests, "-o", out, "--device", "cpu", "--context", 101000, "--restart")
            self.wait_for(out.exists, child, "output")
            time.sleep(1.5)
            for number in numbers[:-1]:
                child.send_signal(number)
                time.sleep(0.5)
                self.assertIsNone(child.poll())  # it finishes what has begun
            self.expect_end(child, numbers[-1])


class Quantize(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.gguf, cls.hf = cls.folder / "large.gguf", cls.folder / "large"
        cls.synth(cls.gguf, "f16", LARGE)
        cls.synth(cls.hf, "f16", LARGE)

    def partials(self):
        return [path for path in self.folder.glob("*.partial-*")]

    def test_half_written_files_and_folders(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            for model, out, weights in ((self.gguf, "out.gguf", "q3_k"), (self.hf, "out", "int4-g32")):
                with self.subTest(signal=number, out=out):
                    child = self.start("quantize", model, "-o", self.folder / out, "--weights", weights)
                    self.wait_for(self.partials, child, "half-written output")
                    self.expect_end(child, number)
                    self.assertFalse((self.folder / out).exists())

    def test_synth(self):
        child = self.start("synth", "llama-3.1-8b", "--weights", "f16", "-o", self.folder / "big.gguf", *LARGE[2:], "--layers", "64")
        self.wait_for(self.partials, child, "half-written output")
        self.expect_end(child, signal.SIGTERM)

    def test_calibration_is_kept(self):
        text = self.folder / "text.txt"
        text.write_text("one two three four " * 2000)
        model, out, work = self.folder / "deep.gguf", self.folder / "gptq.gguf", self.folder / "gptq.gguf.work"
        self.synth(model, "f16", ["--layers", "48", "--hidden", "256", *SHAPE[4:]])
        child = self.start("quantize", model, "-o", out, "--weights", "q4_1", "--method", "gptq", "--calibration", text, "--samples",
                           "16", "--window", "128")
        self.wait_for(work.exists, child, "work folder")
        error = self.expect_end(child, signal.SIGTERM)
        self.assertIn("finished layers are kept in", error)
        self.assertFalse(out.exists())


class Chat(Case):
    def test_an_answer_ends_and_the_conversation_goes_on(self):
        child = self.start("chat", self.model, "--device", "cpu", "--context", 2 * LONG, "--chunk", 64, "-n", 4, "--chat-template", TEMPLATE,
                           stdin=subprocess.PIPE)
        os.set_blocking(child.stderr.fileno(), False)
        self.said = b""

        def says(word):
            def look():
                self.said += child.stderr.read() or b""
                return word in self.said
            return look

        child.stdin.write(b"/help\n")
        child.stdin.flush()
        self.wait_for(says(b"Ctrl-R"), child, "help")
        child.stdin.write(b"x y " * (LONG // 4) + b"\n")
        child.stdin.flush()
        time.sleep(1.5)  # it computes the prompt, which takes minutes
        child.send_signal(signal.SIGINT)
        self.wait_for(says(b", stopped"), child, "end of the answer")
        child.stdin.write(b"/reset\nshort\n")
        child.stdin.flush()
        self.wait_for(lambda: says(b"")() and self.said.count(b"prompt tokens") == 2, child, "next answer")
        child.stdin.write(b"/exit\n")
        child.stdin.close()
        self.assertEqual(child.wait(SOON), 0)

    def test_sigterm_ends_it(self):
        child = self.start("chat", self.model, "--device", "cpu", "--chat-template", TEMPLATE, stdin=subprocess.PIPE)
        time.sleep(1)
        self.expect_end(child, signal.SIGTERM)


if __name__ == "__main__":
    CELER = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main()
