#!/usr/bin/env python3
"""Models that are damaged, split, linked or hostile: damaged_models_test.py CELER. One sentence, and no wrong text."""
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

CELER = None
TEMPLATE = pathlib.Path(__file__).resolve().parent.parent / "chat_templates" / "chatml.jinja"
HIDDEN = 64
SHAPE = ["--layers", "2", "--hidden", str(HIDDEN), "--intermediate", "96", "--vocab", "600", "--heads", "4", "--kv-heads",
         "2", "--head-dim", "32"]
ONES = struct.pack("<f", 1.0) * HIDDEN


def string(text):
    return struct.pack("<Q", len(text)) + text


def tensor_offsets(data):
    """Name to offset in the file, by the tables of a GGUF file."""
    tensors, entries = struct.unpack_from("<QQ", data, 8)
    at = 24

    def take(form):
        nonlocal at
        values = struct.unpack_from("<" + form, data, at)
        at += struct.calcsize("<" + form)
        return values[0] if len(values) == 1 else values

    def take_string():
        return bytes(take(f"{take('Q')}s"))

    def skip(kind):
        if kind == 8:
            take_string()
        elif kind == 9:
            element, count = take("IQ")
            for _ in range(count):
                skip(element)
        else:
            take({0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}[kind])

    for _ in range(entries):
        take_string()
        skip(take("I"))
    offsets = {}
    for _ in range(tensors):
        name = take_string()
        take(f"{take('I')}Q")
        offsets[name] = take("IQ")[1]
    return {name: (at + 31) // 32 * 32 + offset for name, offset in offsets.items()}


class DamagedModels(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="celer_damaged_"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, True)
        cls.model = cls.folder / "model.gguf"
        subprocess.run([CELER, "synth", "llama-2-7b", "--weights", "q8_0", "-o", cls.model, *SHAPE], check=True,
                       capture_output=True, timeout=60)
        cls.bytes = cls.model.read_bytes()

    def file(self, name, content):
        path = self.folder / name
        path.write_bytes(content)
        return path

    def run_celer(self, *args, **kwargs):
        return subprocess.run([CELER, *map(str, args)], capture_output=True, timeout=120, **kwargs)

    def answer(self, model, *flags):
        result = self.run_celer("run", model, "hello", "--raw", "-q", "-n", "8", "--device", "cpu", *flags)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def refused(self, *args, says, code=2, **kwargs):
        result = self.run_celer(*args, **kwargs)
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertEqual(result.stdout.strip(), b"")
        last = result.stderr.decode().splitlines()[-1]
        self.assertRegex(last, r"\Aerror: ")
        self.assertRegex(last, says)
        return result.stderr.decode()

    def overflowing(self):
        """Norms of 3e38 are finite; what they multiply is not."""
        self.assertGreaterEqual(self.bytes.count(ONES), 5)
        return self.file("overflow.gguf", self.bytes.replace(ONES, struct.pack("<f", 3e38) * HIDDEN))

    def test_logits_that_are_not_finite(self):
        model = self.overflowing()
        says = "the model's logits after [0-9]+ tokens are not finite"
        for flags in ([], ["--temperature", "1"], ["--json"]):
            err = self.refused("run", model, "hello", "--raw", "--device", "cpu", *flags, code=1, says=says)
            self.assertEqual(err.count("\n"), 1, err)
        err = self.refused("run", model, "hello", "--raw", "--device", "cpu", "-v", code=1, says=says)
        self.assertRegex(err.splitlines()[-1], "the first such values come from layer 0 of 2 at position 0")
        text = self.file("text.txt", b"a text that is long enough for a window " * 8)
        self.refused("ppl", model, text, "--window", "16", "--device", "cpu", code=1, says=says)
        self.refused("chat", model, "--device", "cpu", "--chat-template", TEMPLATE, code=1, says=says, input=b"hello\n")
        self.refused("bench", model, "--device", "cpu", "--prompt", "8", "--tokens", "4", "--depth", "8", code=1, says=says)

    def tensor_offset(self, name):
        """Where a tensor's data begins."""
        return tensor_offsets(self.bytes)[name]

    def test_weights_that_are_not_finite(self):
        for name, bad in ((b"blk.1.ffn_down.weight", b"\x00\x7e"), (b"token_embd.weight", b"\x00\x7c"),
                          (b"blk.0.attn_norm.weight", b"\x00\x00\xc0\x7f")):
            damaged = bytearray(self.bytes)
            at = self.tensor_offset(name)
            damaged[at:at + len(bad)] = bad
            path = self.file("nan.gguf", bytes(damaged))
            for flags in ([], ["--weights", "int8"], ["--pack-cache"]):
                err = self.refused("run", path, "hello", "--raw", "--device", "cpu", *flags,
                                   says=f"nan.gguf: tensor '{name.decode()}' holds -?(nan|inf) at ",
                                   env={**os.environ, "CELER_CACHE": str(self.folder / "cache")})
                self.assertEqual(err.count("\n"), 1, err)

    def test_weights_beyond_the_format(self):
        damaged = bytearray(self.bytes)
        at = self.tensor_offset(b"blk.1.ffn_down.weight")
        damaged[at:at + 3] = b"\x00\x78\x7f"  # 32768 * 127
        path = self.file("large.gguf", bytes(damaged))
        self.answer(path)
        self.answer(path, "--weights", "int8")
        self.refused("run", path, "hello", "--raw", "--device", "cpu", "--weights", "f16",
                     says="tensor 'blk.1.ffn_down.weight' holds .* and f16 holds at most 65504; try --weights f32")

    def with_metadata(self, entries, tensors=True):
        """The file with more metadata in front; its data stays aligned."""
        added = b"".join(string(key) + struct.pack("<I", kind) + value for key, kind, value in entries)
        pad = string(b"pad") + struct.pack("<I", 8)
        added += pad + string(b"x" * (-(len(added) + len(pad) + 8) % 32))
        tensor_count, count = struct.unpack_from("<QQ", self.bytes, 8)
        if not tensors:
            return b"GGUF" + struct.pack("<IQQ", 3, 0, len(entries) + 1) + added
        return self.bytes[:8] + struct.pack("<QQ", tensor_count, count + len(entries) + 1) + added + self.bytes[24:]

    def test_split_models(self):
        tensors, = struct.unpack_from("<Q", self.bytes, 8)

        def part(number):
            return self.with_metadata([(b"split.no", 2, struct.pack("<H", number)),
                                       (b"split.count", 2, struct.pack("<H", 2)),
                                       (b"split.tensors.count", 5, struct.pack("<i", tensors))], tensors=number == 0)

        expected = self.answer(self.model)
        first = self.file("m-00001-of-00002.gguf", part(0))
        for command in (["run"], ["inspect"], ["tokenize"], ["limits", "--model"]):
            err = self.refused(*command, first, *(["x"] if command == ["tokenize"] else []),
                               says="is part 1 of 2 of a split GGUF, and m-00002-of-00002.gguf is not beside it")
            self.assertEqual(err.count("\n"), 1)
        second = self.file("m-00002-of-00002.gguf", part(1))
        for path in (first, second):
            self.assertEqual(self.answer(path), expected)
            about = json.loads(self.run_celer("inspect", "--json", path).stdout)
            self.assertEqual(about["files"], [first.name, second.name])
            self.assertEqual(about["bytes"], first.stat().st_size + second.stat().st_size)
            self.assertEqual(about["tensor_count"], tensors)

    def test_links(self):
        link = self.folder / "link.gguf"
        link.symlink_to(self.model)
        self.assertEqual(self.answer(link), self.answer(self.model))
        away = self.folder / "away" / "weights.bin"
        away.parent.mkdir()
        shutil.copy(self.model, away)
        other = self.folder / "other.gguf"
        other.symlink_to(away)
        self.assertEqual(self.answer(other), self.answer(self.model))

    def test_control_characters(self):
        evil = b"\x1b]0;evil\x07\xe2\x80\xae"
        for content in (
                self.bytes.replace(string(b"llama"), string(b"l\x1b\x07\x9bm"), 1),
                self.bytes.replace(b"blk.1.ffn_down.weight", b"blk.1.\x1b[31m\xe2\x80\xaewn.weight"[:21].ljust(21, b"x")),
                self.with_metadata([(evil, 8, string(evil)), (b"general.name", 8, string(evil))]),
                self.with_metadata([(evil, 8, string(evil)), (evil, 8, string(evil))])):
            path = self.file("evil.gguf", content)
            for command in (["inspect"], ["inspect", "--tensors"], ["inspect", "--json", "--tensors"],
                            ["run", "-v", "--device", "cpu", "-n", "2"], ["limits", "--model"]):
                result = self.run_celer(*command, path, stdin=subprocess.DEVNULL)
                with self.subTest(command=command, out=result.stdout[-200:], err=result.stderr[-200:]):
                    # What a model says may hold anything; only what celer says about it is looked at.
                    said = result.stderr + (b"" if "run" in command else result.stdout)
                    self.assertNotRegex(said, rb"[\x00-\x09\x0b-\x1f\x7f]")
                    self.assertNotIn(b"\xe2\x80\xae", said)
                    self.assertIn(result.returncode, (0, 2))

    def test_a_cache_that_was_damaged(self):
        env = {**os.environ, "CELER_CACHE": str(self.folder / "packed")}

        def ask():
            result = self.run_celer("run", self.model, "hello", "--raw", "-q", "-n", "8", "--device", "cpu",
                                    "--pack-cache", env=env)
            self.assertEqual(result.returncode, 0, result.stderr)
            return result

        expected = ask()
        files = [p for p in (self.folder / "packed").rglob("packed-*") if p.is_file()]
        if not files:
            self.skipTest("the matmul variant of this machine packs nothing")
        good = files[0].read_bytes()
        self.assertEqual(ask().stderr, b"")
        for at in (len(good) // 2, len(good) * 3 // 4, len(good) - 1):
            bad = bytearray(good)
            bad[at] ^= 0x10
            files[0].write_bytes(bad)
            again = ask()
            self.assertEqual(again.stdout, expected.stdout)
            self.assertRegex(again.stderr.decode(), r"\A[^\n]*(checksum|between|behind)[^\n]*is replaced\n\Z")
            self.assertEqual(again.stderr.count(b"\n"), 1)
            self.assertEqual(files[0].read_bytes(), good)
            self.assertEqual(ask().stderr, b"")


if __name__ == "__main__":
    CELER = os.path.abspath(sys.argv.pop(1))
    unittest.main()
