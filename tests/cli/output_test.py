#!/usr/bin/env python3
"""How every command treats its streams: output_test.py CELER. Nothing is lost silently, lines fit, help is true."""
import json
import os
import pathlib
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import unittest

CELER = None
SHAPE = ["--layers", "2", "--hidden", "64", "--intermediate", "96", "--vocab", "600", "--heads", "4", "--kv-heads", "2",
         "--head-dim", "32"]
COMMANDS = ["run", "chat", "ppl", "eval", "quantize", "tokenize", "pull", "synth", "inspect", "limits", "bench", "probe", "kernels"]
TEMPLATE = pathlib.Path(__file__).resolve().parent.parent / "chat_templates" / "chatml.jinja"
FULL = "error: standard output cannot be written: No space left on device\n"
CLOSED = "error: standard output was closed before all of it was written\n"


class OutputCase(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="celer_output_"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, True)
        cls.model = cls.folder / "model.gguf"
        cls.text = cls.folder / "text.txt"
        cls.text.write_text("one two three " * 200)
        cls.env = {**os.environ, "CELER_CACHE": str(cls.folder / "cache")}
        cls.env.pop("COLUMNS", None)
        cls.run_celer("synth", "llama-3.1-8b", "--weights", "q8_0", "-o", cls.model, *SHAPE)
        # Every command that prints, quickly.
        cls.lines = [[], ["--help"], ["--version"], *[[c, "--help"] for c in COMMANDS],
                     ["run", cls.model, "x", "--device", "cpu", "-n", "4"],
                     ["run", cls.model, "x", "--device", "cpu", "-n", "4", "--json"],
                     ["chat", cls.model, "--device", "cpu", "-n", "4", "--chat-template", TEMPLATE],
                     ["ppl", cls.model, cls.text, "--device", "cpu", "--window", "16", "--chunks", "2"],
                     ["eval", cls.model, cls.text, "--device", "cpu", "--window", "16", "--windows", "2", "--kernels", "default"],
                     ["tokenize", cls.model, "hello"], ["pull", "--list"], ["inspect", cls.model, "--tensors"],
                     ["limits", "--list"], ["limits", "--model", "llama-2-7b", "--machine", "h200"],
                     ["bench", cls.model, "--device", "cpu", "--prompt", "4", "--tokens", "2", "--repeat", "1"],
                     ["probe", "--device", "cpu", "--quick"], ["kernels"]]

    @classmethod
    def run_celer(cls, *args, code=0, **kwargs):
        kwargs = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "timeout": 120, "input": "hello\n",
                  "env": cls.env, **kwargs}
        result = subprocess.run([CELER, *map(str, args)], **kwargs)
        if result.returncode != code:
            raise AssertionError(f"{args}: exit code {result.returncode}, expected {code}\n{result.stderr}")
        return result


class WriteErrors(OutputCase):
    def test_full_disk(self):
        for line in self.lines:
            with self.subTest(line=line), open("/dev/full", "w") as full:
                self.assertTrue(self.run_celer(*line, code=1, stdout=full).stderr.endswith(FULL))

    def test_closed_pipe(self):
        for line in self.lines:
            with self.subTest(line=line):
                read, write = os.pipe()
                os.close(read)
                try:
                    self.assertTrue(self.run_celer(*line, code=1, stdout=write).stderr.endswith(CLOSED))
                finally:
                    os.close(write)

    def test_no_standard_output_at_all(self):
        page = self.folder / "page.html"
        result = subprocess.run(f"'{CELER}' limits --model llama-2-7b --machine h200 --html '{page}' >&-", shell=True,
                                capture_output=True, text=True, timeout=60)
        self.assertEqual(result.returncode, 1)
        self.assertIn("standard output cannot be written: Bad file descriptor", result.stderr)
        self.assertTrue(page.read_text().endswith("</html>\n"))  # and nothing else got into it

    def test_nobody_hears_the_messages(self):
        for line in (["pull", "--list"], ["run", self.model, "x", "--device", "cpu", "-n", "4"],
                     ["synth", "llama-2-7b", "--weights", "q8_0", "-o", self.folder / "quiet.gguf", *SHAPE]):
            with self.subTest(line=line), open("/dev/full", "w") as full:
                self.run_celer(*line, stderr=full)

    def test_an_answer_nobody_reads_is_not_computed(self):
        command = [CELER, "run", self.model, "x", "--device", "cpu", "-n", "100000", "--context", "100100", "--ignore-end"]
        run = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self.env)
        run.stdout.read(1)
        run.stdout.close()
        try:
            self.assertEqual(run.wait(timeout=60), 1)  # all of it would take many minutes
        finally:
            run.kill()
        self.assertEqual(run.stderr.read().decode(), CLOSED)
        run.stderr.close()

    def test_files(self):
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        for flag in ("--html", "--svg"):
            page = self.folder / "full.page"
            result = self.run_celer("limits", "--model", "llama-2-7b", "--machine", "h200", flag, page, code=1, preexec_fn=limit)
            self.assertEqual(result.stdout, "")
            self.assertEqual(result.stderr, f"error: {page}: cannot be written: File too large\n")
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
        for out in ("full.gguf", "full"):
            result = self.run_celer("synth", "llama-2-7b", "--weights", "f16", "-o", self.folder / out, *SHAPE, code=1,
                                    preexec_fn=limit)
            self.assertRegex(result.stderr, r"\Aerror: [^\n]*: cannot be written: File too large\n\Z")
        self.assertEqual([path.name for path in self.folder.rglob("*full*") if path.is_file()], [])


class Help(OutputCase):
    def flags(self, command):
        return set(re.findall(r"--[a-z-]+", self.run_celer(command, "--help").stdout))

    def test_only_what_has_an_effect(self):
        sampling = {"--temperature", "--top-k", "--top-p", "--min-p", "--seed", "--stop", "--max-tokens"}
        self.assertEqual(self.flags("ppl") & (sampling | {"--chat-template", "--system", "--logprobs", "--raw"}), set())
        self.assertEqual(self.flags("chat") & {"--logprobs", "--json", "--raw", "--file"}, set())
        self.assertEqual(self.flags("chat") & sampling, sampling)
        self.assertEqual(self.flags("run") & sampling, sampling)
        self.assertIn("--chat-template", self.flags("run") & self.flags("chat"))
        self.assertEqual(self.flags("bench") & (sampling | {"--tokenizer"}), set())

    def test_flags_without_an_effect_are_refused(self):
        for line, says in ((["ppl", self.model, self.text, "--chat-template", TEMPLATE], "unknown flag '--chat-template'"),
                           (["run", self.model, "x", "--logprobs", "2"], "--logprobs is reported in JSON only; give --json too"),
                           (["bench", "--ladder", "llama-2-7b", "--kv", "int8"], "--kv has no effect with --ladder")):
            self.assertIn(says, self.run_celer(*line, code=2).stderr)


class Input(OutputCase):
    def test_a_prompt_from_standard_input(self):
        flags = ["--device", "cpu", "-n", "4", "--json", "--raw", "--temperature", "0"]
        tokens = [json.loads(self.run_celer("run", self.model, *line, *flags, input="hello").stdout)["tokens"]
                  for line in (["hello"], ["-"], ["--file", "-"], [])]
        self.assertEqual(tokens, tokens[:1] * 4)


class Width(OutputCase):
    def test_every_help_fits_into_eighty_columns(self):
        graph = ["inspect", "run", "bench", "check", "optimize", "operators"]
        for line in ([], *[[c] for c in COMMANDS], ["batch"], ["serve"], ["graph"], *[["graph", g] for g in graph],
                     ["quantize", "net.onnx"]):
            with self.subTest(line=line):
                for row in self.run_celer(*line, "--help").stdout.splitlines():
                    self.assertLessEqual(len(row), 80, row)

    # A path or a word longer than the line cannot be broken.
    def check(self, text, width, line):
        for row in text.splitlines():
            if len(row) > width and len(max(row.split(), key=len)) < width - 40:
                self.fail(f"{line}: {len(row)} columns: {row}")

    def test_eighty_columns_where_there_is_no_terminal(self):
        lines = [line for line in self.lines if line[:1] != ["ppl"]]  # its result is one sentence
        lines += [["ppl", "--help"], ["bench", self.model, "--device", "cpu", "--prompt", "4", "--tokens", "2", "--repeat", "1", "--ops"],
                  ["limits", "--model", "qwen3-30b-a3b", "--machine", "h200", "--context", "1k,4k,16k,64k,128k"]]
        for line in lines:
            with self.subTest(line=line):
                result = self.run_celer(*line)
                self.check(result.stdout, 80, line)
                self.check(result.stderr, 80, line)

    def test_columns(self):
        line = ["limits", "--model", "llama-2-7b", "--machine", "h200"]
        wide = self.run_celer(*line, env={**self.env, "COLUMNS": "200"}).stdout
        self.assertGreater(max(map(len, wide.splitlines())), 100)
        for columns in (60, 120):
            self.check(self.run_celer(*line, env={**self.env, "COLUMNS": str(columns)}).stdout, columns, line)


if __name__ == "__main__":
    CELER = os.path.abspath(sys.argv.pop(1))
    unittest.main()
