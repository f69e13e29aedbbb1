#!/usr/bin/env python3
"""Outputs that are no plain files, and disks that are full: special_files_test.py CELER. A device stays a device, a link stays a
link, and what cannot be written leaves what was there. The devices are made in the test's own folder, never those of /dev."""
import json
import os
import pathlib
import resource
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import unittest

CELER = None
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
NETWORK = next((ROOT / "tests" / "golden" / "networks").rglob("*.onnx"), None)
SHAPE = ["--layers", "2", "--hidden", "64", "--intermediate", "96", "--vocab", "600", "--heads", "4", "--kv-heads", "2",
         "--head-dim", "32"]
LIMITS = ["limits", "--model", "llama-2-7b", "--machine", "h200"]


def file_limit(size):
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.shared = pathlib.Path(tempfile.mkdtemp(prefix="celer_special_"))
        cls.addClassCleanup(shutil.rmtree, cls.shared, True)
        cls.env = {**os.environ, "CELER_CACHE": str(cls.shared / "cache")}
        cls.model = cls.shared / "model.gguf"
        cls.run_celer("synth", "llama-3.1-8b", "--weights", "f16", "-o", cls.model, *SHAPE)
        cls.text = cls.shared / "text.txt"
        cls.text.write_text("one two three " * 200)
        cls.requests = cls.shared / "requests.jsonl"
        cls.requests.write_text('{"prompt": "a", "max_tokens": 4}\n' * 3)

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(dir=self.shared))

    @classmethod
    def run_celer(cls, *args, code=0, **kwargs):
        result = subprocess.run([CELER, *map(str, args)], capture_output=True, text=True, timeout=120, env=cls.env, **kwargs)
        if result.returncode != code:
            raise AssertionError(f"{args}: exit code {result.returncode}, expected {code}\n{result.stderr}")
        return result

    def names(self):
        return sorted(path.name for path in self.folder.iterdir())

    def device(self, name, minor):
        path = self.folder / name
        try:
            os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, minor))
            os.close(os.open(path, os.O_WRONLY))
        except OSError as error:
            self.skipTest(f"a device cannot be made here: {error}")
        return path

    # Every command that writes a file which the user names, with the name at the end.
    def writers(self):
        return {"limits --html": [*LIMITS, "--html"], "limits --svg": [*LIMITS, "--svg"],
                "synth": ["synth", "llama-3.1-8b", "--weights", "q8_0", *SHAPE, "--force", "-o"],
                "imatrix": ["quantize", self.model, "--calibration", self.text, "--samples", "1", "--window", "64", "--imatrix-out"],
                "recipe": ["quantize", self.model, "--weights", "q8_0", "--explain", "--recipe-out"],
                "quantize": ["quantize", self.model, "--weights", "q8_0", "--force", "-o"],
                "trace": ["run", self.model, "x", "--device", "cpu", "-n", "4", "-q", "--trace"],
                "optimize": ["graph", "optimize", NETWORK, "-o"], "svg": ["graph", "inspect", NETWORK, "--svg"]}

    def target(self, name, word):
        """A name that the command takes for the kind of file it writes."""
        return self.folder / (word + (".gguf" if name in ("synth", "quantize", "imatrix") else ""))


class SpecialFiles(Case):
    def test_a_device_stays_a_device(self):
        for name, command in self.writers().items():
            with self.subTest(name):
                null = self.device(self.target(name, "null").name, 3)
                before = null.stat()
                self.run_celer(*command, null)
                self.assertTrue(stat.S_ISCHR(null.lstat().st_mode))
                self.assertEqual(null.stat().st_rdev, before.st_rdev)
                self.assertEqual(self.names(), [null.name])
                null.unlink()

    def test_a_device_behind_a_link(self):
        null = self.device("null", 3)
        link = self.folder / "link"
        link.symlink_to("null")
        self.run_celer(*LIMITS, "--html", link)
        self.assertTrue(link.is_symlink())
        self.assertTrue(stat.S_ISCHR(null.lstat().st_mode))
        self.assertEqual(self.names(), ["link", "null"])

    def test_a_full_device(self):
        for name, command in self.writers().items():
            with self.subTest(name):
                full = self.device(self.target(name, "full").name, 7)
                result = self.run_celer(*command, full, code=1)
                self.assertIn(f"{full}: cannot be written: No space left on device", result.stderr)
                self.assertTrue(stat.S_ISCHR(full.lstat().st_mode))
                self.assertEqual(self.names(), [full.name])
                full.unlink()

    def test_a_pipe_gets_the_same_bytes(self):
        for name, command in self.writers().items():
            if name == "trace":  # has times in it
                continue
            with self.subTest(name):
                plain, pipe = self.target(name, "plain"), self.target(name, "pipe")
                self.run_celer(*command, plain)
                os.mkfifo(pipe)
                got = []
                reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
                reader.start()
                self.run_celer(*command, pipe)
                reader.join(60)
                self.assertEqual(got[0], plain.read_bytes())
                self.assertTrue(stat.S_ISFIFO(pipe.lstat().st_mode))
                self.assertEqual(self.names(), sorted([plain.name, pipe.name]))
                plain.unlink()
                pipe.unlink()

    def test_a_trace_through_a_pipe(self):
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        got = []
        reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
        reader.start()
        self.run_celer(*self.writers()["trace"], pipe)
        reader.join(60)
        self.assertIn("step", {event["name"] for event in json.loads(got[0])})

    def test_links_are_followed(self):
        for name, command in self.writers().items():
            with self.subTest(name):
                (self.folder / "far").mkdir()
                old = self.folder / "far" / "old"
                old.write_text("old")
                link = self.target(name, "link")
                link.symlink_to("far/old")
                self.run_celer(*command, link)
                self.assertTrue(link.is_symlink())
                self.assertGreater(old.stat().st_size, 3)
                self.assertEqual([path.name for path in (self.folder / "far").iterdir()], ["old"])
                shutil.rmtree(self.folder / "far")
                link.unlink()

    def test_a_folder_is_a_clear_error(self):
        for name, command in self.writers().items():
            with self.subTest(name):
                folder = self.target(name, "sub")
                folder.mkdir()
                result = self.run_celer(*command, folder, code=2)
                self.assertRegex(result.stderr, r"error: [^\n]*is a folder, expected the name of a file")
                self.assertEqual(list(folder.iterdir()), [])
                folder.rmdir()

    def test_quantize_into_a_folder_that_is_a_device(self):
        model = self.folder / "hf"
        self.run_celer("synth", "llama-3.1-8b", "--weights", "f16", "-o", model, *SHAPE)
        null = self.device("null", 3)
        for flags in ([], ["--force"]):
            self.run_celer("quantize", model, "--weights", "int8", "-o", null, *flags, code=2)
            self.assertTrue(stat.S_ISCHR(null.lstat().st_mode))

    def test_batch(self):
        null = self.device("null", 3)
        result = self.run_celer("batch", self.model, self.requests, "-o", null, "--device", "cpu", code=2)
        self.assertIn("is no regular file", result.stderr)
        self.assertTrue(stat.S_ISCHR(null.lstat().st_mode))

    def test_standard_output(self):
        out = self.folder / "out.html"
        with open(out, "w") as file:
            subprocess.run([CELER, *LIMITS, "--html", "/dev/stdout"], stdout=file, stderr=subprocess.DEVNULL, env=self.env, check=True,
                           timeout=60)
        text = out.read_text()
        self.assertTrue(text.startswith("<!"))
        self.assertGreater(len(text), text.index("</html>") + 10)  # the table follows, nothing is overwritten


class FullDisks(Case):
    def test_what_was_there_stays(self):
        for name, command in self.writers().items():
            with self.subTest(name):
                old = self.target(name, "old")
                old.write_text("what was there")
                result = self.run_celer(*command, old, code=1, preexec_fn=file_limit(100))
                self.assertIn("cannot be written: File too large", result.stderr)
                self.assertEqual(old.read_text(), "what was there")
                self.assertEqual(self.names(), [old.name])
                old.unlink()

    def test_nothing_is_left(self):
        for name, command in self.writers().items():
            with self.subTest(name):
                self.run_celer(*command, self.target(name, "new"), code=1, preexec_fn=file_limit(100))
                self.assertEqual(self.names(), [])

    def test_a_trace_that_fills_the_disk_stays_readable(self):
        trace = self.folder / "trace.json"
        result = self.run_celer("run", self.model, "x", "--device", "cpu", "-n", "200", "--ignore-end", "--trace", trace, code=1,
                                preexec_fn=file_limit(4000))
        self.assertIn(f"{trace}: cannot be written: File too large", result.stderr)
        self.assertGreater(len(json.loads(trace.read_text())), 0)

    def test_batch(self):
        out = self.folder / "out.jsonl"
        command = ["batch", self.model, self.requests, "-o", out, "--device", "cpu", "--window", "1"]
        result = self.run_celer(*command, code=1, preexec_fn=file_limit(10))
        self.assertIn("out.jsonl: cannot be written: File too large", result.stderr)
        self.assertEqual(self.names(), [])  # no empty files
        self.run_celer("batch", self.folder / "none.gguf", self.requests, "-o", out, code=2)
        self.assertEqual(self.names(), [])
        self.run_celer(*command)
        whole = out.read_text()
        lines = whole.splitlines(keepends=True)
        self.assertEqual(len(lines), 3)
        out.write_text(lines[0])
        result = self.run_celer(*command, code=1, preexec_fn=file_limit(len(lines[0]) + 20))
        self.assertEqual(out.read_text(), lines[0])  # and no torn line
        self.run_celer(*command)
        self.assertEqual(len(out.read_text().splitlines()), 3)

    def test_a_page_that_cannot_be_written_is_known_before_the_work(self):
        for command in (["bench", self.model, "--device", "cpu", "--prompt", "4", "--tokens", "2", "--repeat", "1"],
                        ["eval", self.model, self.text, "--device", "cpu", "--window", "16", "--windows", "1", "--kernels", "default"]):
            page = self.folder / "none" / "page.html"
            result = self.run_celer(*command, "--html", page, code=2)
            self.assertIn(f"{page}: cannot be written: No such file", result.stderr)
            self.assertEqual(result.stdout, "")
            self.assertEqual(self.names(), [])
        bench = ["bench", self.model, "--device", "cpu", "--prompt", "4", "--tokens", "2", "--repeat", "1"]
        self.run_celer(*bench, "--html", self.folder / "page.html", code=1, preexec_fn=file_limit(1000))
        self.assertEqual(self.names(), [])


if __name__ == "__main__":
    CELER = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main()
