#!/usr/bin/env python3
"""Installs celer into a folder, builds examples/ against it as a stranger would, and runs them.

  python3 examples_test.py build build/celer
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

BUILD, CELER = (os.path.abspath(argument) for argument in sys.argv[1:3])
ROOT = pathlib.Path(__file__).resolve().parents[2]


def run(*command, check=True, **options):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=600, **options)
    if check and done.returncode != 0:
        raise AssertionError(f"{command}: exit code {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return done


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="celer-install-")
        cls.addClassCleanup(cls.folder.cleanup)
        cls.work = pathlib.Path(cls.folder.name)
        cls.prefix = cls.work / "prefix"
        run("cmake", "--install", BUILD, "--prefix", cls.prefix)
        run("cmake", "-S", ROOT / "examples", "-B", cls.work / "build", f"-DCMAKE_PREFIX_PATH={cls.prefix}")
        run("cmake", "--build", cls.work / "build", "--parallel", "2")
        cls.examples = cls.work / "build"
        cls.model = cls.work / "tiny.gguf"
        run(CELER, "synth", "smollm2-135m", "--weights", "q8_0", "--layers", 2, "--hidden", 64, "--intermediate", 96,
            "--vocab", 512, "--heads", 2, "--kv-heads", 1, "--head-dim", 32, "-o", cls.model)

    def test_installed_program_runs(self):
        self.assertRegex(run(self.prefix / "bin/celer", "--version").stdout, r"^celer \d+\.\d+\.\d+(-dev)?\n$")

    def test_every_public_header_is_installed_and_stands_alone(self):
        headers = sorted(path.name for path in (ROOT / "include/celer").glob("*.h"))
        self.assertEqual(headers, sorted(path.name for path in (self.prefix / "include/celer").glob("*")))
        for header in headers:
            with self.subTest(header=header):
                if header == "celer.h":
                    run(os.environ.get("CC", "cc"), "-std=c99", "-fsyntax-only", "-Wall", "-Wextra", "-pedantic", "-Werror", "-x", "c",
                        f"-I{self.prefix}/include", "-", input=f"#include <celer/{header}>\n")
                run(os.environ.get("CXX", "c++"), "-std=c++20", "-fsyntax-only", "-Wall", "-Werror", "-x", "c++",
                    f"-I{self.prefix}/include", "-", input=f"#include <celer/{header}>\n")

    def test_another_version_is_refused(self):
        (self.work / "other").mkdir()
        (self.work / "other/CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.25)\nproject(other LANGUAGES CXX)\nfind_package(celer 9.0 REQUIRED)\n")
        done = run("cmake", "-S", self.work / "other", "-B", self.work / "other/build",
                   f"-DCMAKE_PREFIX_PATH={self.prefix}", check=False)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("requested version \"9.0\"", done.stderr)

    def test_generate(self):
        model = self.model
        said = run(self.examples / "generate", model, "hello").stdout
        self.assertEqual(said, run(CELER, "run", model, "hello", "--raw", "-q", "-n", 200, "--temperature", 0,
                                   "--device", "cpu").stdout)
        missing = run(self.examples / "generate", self.work / "missing.gguf", "hello", check=False)
        self.assertEqual(missing.returncode, 1)
        self.assertIn("missing.gguf", missing.stderr)

    def test_engine_thread(self):
        said = run(self.examples / "engine_thread", self.model, "one", "two", "three").stdout.splitlines()
        self.assertEqual([line.rsplit(" ", 1)[-1] for line in said if line.startswith("  ")], ["[length]", "[length]", "[cancelled]"])
        self.assertRegex(said[-1], r"^\d+ tokens in \d+ steps$")

    def test_batch(self):
        prompts = [f"prompt {i}" for i in range(5)]
        said = run(self.examples / "batch", self.model, input="\n".join(prompts)).stdout.splitlines()
        self.assertEqual(len(said), 5)
        alone = run(self.examples / "batch", self.model, input=prompts[3]).stdout.splitlines()
        self.assertEqual(alone, said[3:4])

    def test_embed(self):
        said = run(self.examples / "embed", self.model, "a cat", "a cat", "a theorem").stdout.splitlines()
        self.assertEqual(said[:2], ["1.0000  a cat"] * 2)
        self.assertLess(float(said[2].split()[0]), 0.9999)

    def test_structured(self):
        schema = '{"type": "object", "properties": {"sex": {"enum": ["f", "m"]}, "old": {"type": "boolean"}}, "required": ["sex", "old"], ' \
                 '"additionalProperties": false}'
        answer = json.loads(run(self.examples / "structured", self.model, "x", schema).stdout)
        self.assertEqual((sorted(answer), type(answer["old"])), (["old", "sex"], bool))
        refused = run(self.examples / "structured", self.model, "x", '{"type": "thing"}', check=False)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("#/type", refused.stderr)

    def test_quantize(self):
        """As the command: the same bytes, and the same perplexity."""
        source, text = self.work / "f16.gguf", self.work / "text.txt"
        run(CELER, "synth", "smollm2-135m", "--weights", "f16", "--layers", 2, "--hidden", 64, "--intermediate", 128,
            "--vocab", 512, "--heads", 2, "--kv-heads", 1, "--head-dim", 32, "-o", source)
        text.write_text("The quick brown fox jumps over the lazy dog. " * 60)
        ours, theirs = self.work / "ours.gguf", self.work / "theirs.gguf"
        said = run(self.examples / "quantize", source, ours, "q4_0", text).stdout
        self.assertIn("writing: done", said)
        run(CELER, "quantize", source, "-o", theirs, "--weights", "q4_0", "--calibration", text, "--window", 128, "--samples", 1 << 20)
        self.assertEqual(ours.read_bytes(), theirs.read_bytes())
        found = json.loads(run(CELER, "ppl", ours, text, "--window", 128, "--json", "--device", "cpu").stdout)
        self.assertIn(f"ours.gguf: perplexity {found['perplexity']:.3f} +- {found['error']:.3f}", said)
        again = run(self.examples / "quantize", source, ours, "q4_0", text, check=False)
        self.assertEqual(again.returncode, 1)
        self.assertIn("is there already", again.stderr)
        self.assertIn("q4_00", run(self.examples / "quantize", source, self.work / "no.gguf", "q4_00", text, check=False).stderr)

    def test_quantize_network(self):
        network, out = ROOT / "tests/golden/networks/mixed.onnx", self.work / "int8.onnx"
        said = run(self.examples / "quantize_network", network, out).stdout
        layers, candidates = re.match(r"(\d+) of (\d+) layers as integers; constants \d+ bytes, were \d+\n", said).groups()
        self.assertGreater(int(layers), 0)
        self.assertLessEqual(int(layers), int(candidates))
        self.assertIn("the largest is", run(self.examples / "graph", out, 0.5).stdout)
        self.assertIn("is there already", run(self.examples / "quantize_network", network, out, check=False).stderr)

    def test_graph(self):
        network = ROOT / "tests/golden/networks/mixed.onnx"
        said = run(self.examples / "graph", network, 0.5).stdout
        self.assertRegex(said, r"^\w+: f32 \[[\d, ]+\], the largest is \S+, element \d+\n")
        self.assertEqual(run(self.examples / "graph", self.model, 0.5, check=False).returncode, 1)

    def test_chat_in_c(self):
        model = self.model
        said = run(self.examples / "chat", model, "hello").stdout
        self.assertEqual(said, run(self.examples / "generate", model, "hello").stdout)
        missing = run(self.examples / "chat", self.work / "missing.gguf", "hello", check=False)
        self.assertEqual(missing.returncode, 1)
        self.assertIn("missing.gguf", missing.stderr)

    def test_limits(self):
        said = run(self.examples / "limits", "llama-3.1-8b", "rtx4090").stdout
        self.assertIn("llama-3.1-8b on rtx4090", said)
        # 16 bits of 7.5e9 weights at 100 GB/s: 6.6 tok/s without any KV.
        said = run(self.examples / "limits", "llama-3.1-8b", 100, 1000).stdout
        self.assertRegex(said, r"16-bit weights: first token after \d+\.\d ms, then 6\.[56] tok/s \(bound by reading weights\)")
        self.assertEqual(run(self.examples / "limits", "llama-3.1-8b", "no-such", check=False).returncode, 2)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
