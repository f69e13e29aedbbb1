#!/usr/bin/env python3
"""What celer says when it is used wrongly: errors_test.py CELER. One sentence, what to do, no crash."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

CELER = None
TEMPLATE = pathlib.Path(__file__).resolve().parent.parent / "chat_templates" / "chatml.jinja"
SHAPE = ["--layers", "2", "--hidden", "64", "--intermediate", "96", "--vocab", "600", "--heads", "4", "--kv-heads", "2",
         "--head-dim", "32"]


class ErrorsCase(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="celer_errors_"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, True)
        cls.model = cls.folder / "model.gguf"
        subprocess.run([CELER, "synth", "llama-2-7b", "--weights", "q8_0", "-o", cls.model, *SHAPE], check=True,
                       capture_output=True, timeout=60)

    def file(self, name, content):
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        return path

    def run_celer(self, *args, **kwargs):
        return subprocess.run([CELER, *map(str, args)], text=True, capture_output=True, timeout=120,
                              stdin=subprocess.DEVNULL, **kwargs)

    def refused(self, *args, says, code=2, **kwargs):
        result = self.run_celer(*args, **kwargs)
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertEqual(result.stdout, "")
        self.assertRegex(result.stderr, r"\Aerror: [^\n]+\n\Z")
        self.assertIn(says, result.stderr)

    def test_values_of_flags(self):
        for flags, says in (
                (["--context", "abc"], "--context 'abc': expected a whole number\n"),
                (["--temperature", "hot"], "--temperature 'hot': expected a number\n"),
                (["-n", "many"], "--max-tokens 'many': expected a whole number from 1 to 1000000000\n"),
                (["-n", "99999999999999999999"],
                 "--max-tokens '99999999999999999999': expected a whole number from 1 to 1000000000\n"),
                (["-n", "0"], "--max-tokens '0': expected a whole number from 1 to 1000000000\n"),
                (["--context", "99999999999999999999"], "expected a whole number up to 9223372036854775807\n"),
                (["--threads", "-1"], "--threads '-1': expected a whole number from 0 to 1024\n"),
                (["--threads", "99999999999"], "--threads '99999999999': expected a whole number from 0 to 1024\n"),
                (["--chunk", "0"], "--chunk '0': expected a whole number from 1 to 65536\n"),
                (["--top-k", "3000000000"], "--top-k '3000000000': expected a whole number from 0 to 2147483647\n"),
                (["--logprobs", "101", "--json"], "--logprobs '101': expected a whole number from 0 to 100\n"),
                (["--top-p", "1.5"], "top-p is 1.5, expected more than 0, at most 1\n"),
                (["--seed", "-1"], "--seed '-1': expected a whole number from 0 to 18446744073709551615\n"),
                (["--seed", "18446744073709551616"], "--seed '18446744073709551616': expected a whole number from 0 to"),
                (["--context"], "--context needs a whole number after it; see celer run --help"),
                (["--stop"], "--stop needs a value after it; see celer run --help"),
                (["--context", "-1"], "--context -1: the model has "),
                (["--context", "9000000000000000000"], " positions; give 1 to "),
                (["--device", "gpu"], "--device 'gpu' is not one of auto, cpu, cuda, cuda:N"),
                (["--device", "cuda:99"], "try --device cpu"),
                (["--kv-memory", "40"], "--kv-memory 40: the unit is missing, write it like 24GiB"),
                (["--kv-memory", "120%"], "--kv-memory '120%': a share is above 0 % and at most 100 %"),
                (["--weights", "int3"], "--weights 'int3' is not one of stored, f32"),
                (["--kv", "int2"], "--kv 'int2' is not one of f32, f16, bf16, int8, fp8, int8-channel, int4"),
                (["--contxt", "5"], "unknown flag '--contxt'; did you mean '--context'?")):
            with self.subTest(flags=flags):
                self.refused("run", self.model, "x", *flags, says=says)
        for memory in ("1KiB", "100000GiB"):  # too small for one sequence, and more than there is: the machine's fault
            result = self.run_celer("run", self.model, "x", "--device", "cpu", "--kv-memory", memory)
            self.assertEqual(result.returncode, 1)
            self.assertRegex(result.stderr, r"\Aerror: .*keys and values.*\n\Z")
        answer = self.run_celer("run", self.model, "x", "--device", "cpu", "-n", "2", "--kv-memory", "10%", "-v")
        self.assertEqual(answer.returncode, 0)
        self.assertRegex(answer.stderr, r"KV for \d+ tokens")
        self.refused("synth", "llama-2-7b", "--weights", "q8_0", "-o", self.folder / "x.gguf", "--layers", "0",
                     says="--layers '0': expected a whole number from 1 to 16777216\n")
        for switch in ("--raw", "--pack-cache"):
            self.refused("run", self.model, "x", switch + "=maybe",
                         says=switch + " 'maybe': expected nothing, true or false")
        self.refused("run", self.model, "x", "--device", "cpu", env={**os.environ, "CELER_PACK_CACHE": "maybe"},
                     says="CELER_PACK_CACHE='maybe': expected 0 or 1")
        self.refused("bench", "random:llama-2-7b", "--device", "cpu", says="write a file with celer synth instead")
        self.refused("run", says="MODEL is required; see celer run --help")
        self.refused("ppl", self.model, says="FILE is required; see celer ppl --help")
        self.refused("--versio", says="did you mean '--version'?")
        self.assertIn("Usage: celer run ", self.run_celer("run", "--help").stdout)

    def test_flags_given_twice(self):
        for command, flags, says in (
                ("run", ["-n", "5", "--max-tokens", "6"], "--max-tokens was given twice, as '5' and '6'; give it once\n"),
                ("run", ["--seed=1", "--seed=2"], "--seed was given twice, as '1' and '2'; give it once\n"),
                ("run", ["--file", "a", "--file", "b", "--file", "c"],
                 "--file was given 3 times, as 'a' and 'b' and 'c'; give it once\n"),
                ("run", ["--json", "--json"], "--json was given twice; give it once\n"),
                ("run", ["--raw", "--raw=false"], "--raw was given twice; give it once\n"),
                ("bench", ["--tokens", "1", "--tokens", "2"], "--tokens was given twice, as '1' and '2'; give it once\n"),
                ("inspect", ["--tensors", "--tensors"], "--tensors was given twice; give it once\n")):
            with self.subTest(flags=flags):
                self.refused(command, self.model, *flags, says=says)
        # These are meant to be.
        flags = ["-n", "2", "--device", "cpu", "--stop", "a", "--stop", "b", "--logit-bias", "5=1", "--logit-bias", "6=1"]
        self.assertEqual(self.run_celer("run", self.model, *flags, "-v", "-v", "x").returncode, 0)

    def test_logit_bias(self):
        for text in ("=5", "5=", "=", "5", "", "x=1", "5=x", "5=1x", "5 =1", "1e3=1", "99999999999=1"):
            with self.subTest(text=text):
                self.refused("run", self.model, "x", "--logit-bias", text,
                             says=f"--logit-bias '{text}': expected TOKEN=VALUE, e.g. 123=-5\n")
        self.refused("run", self.model, "x", "--logit-bias", "5=1", "--logit-bias", "5=2",
                     says="--logit-bias '5=2': token 5 has a bias already; give one per token\n")
        self.refused("run", self.model, "x", "--logit-bias", "600=1", says="logit bias names token 600, but the vocabulary has 600")

    def test_models_that_are_none(self):
        whole = self.model.read_bytes()
        (self.folder / "empty").mkdir()
        for path, says in (
                (self.file("zero.gguf", b""), "is empty (0 bytes); fetch it again"),
                (self.file("text.gguf", b"a text, not a model\n"), "is no model file that celer knows; supported are"),
                (self.file("magic.gguf", whole[:4]), "cut short or damaged: fetch it again"),
                (self.file("short.gguf", whole[:300]), "cut short or damaged: fetch it again"),
                (self.file("shorter.gguf", whole[:-1]), "cut short or damaged: fetch it again"),
                (self.folder / "empty", "the folder has no config.json; supported are"),
                (self.file("hf/config.json", b"{}").parent, "holds neither"),
                ("/dev/null", "is not a regular file"),
                (self.folder / "none.gguf", "no such file or folder"),
                ("x" * 5000, "no such file or folder")):
            for command in (["inspect"], ["run"], ["limits", "--model"]):
                # A folder whose config.json says nothing is refused in other words by each.
                if str(path).endswith("hf") and command != ["inspect"] or len(str(path)) > 4096 and "limits" in command:
                    continue
                if "config.json" in says and "limits" in command:
                    continue
                with self.subTest(path=str(path)[-40:], command=command):
                    self.refused(*command, path, says=says)
        self.refused("run", self.folder / "hf", says="has neither tokenizer.json nor tokenizer.model; fetch them")

    def test_texts(self):
        self.refused("tokenize", self.model, "--file", self.folder, says="is a folder, expected a file")
        self.refused("tokenize", self.model, "--file", self.folder / "no", says="no such file")
        self.refused("tokenize", self.model, "--batch", self.folder, says="is a folder, expected a file")
        self.refused("tokenize", self.model, "--decode", "5,600", says="there is no token 600; the vocabulary has 600")
        self.refused("tokenize", self.model, "--batch", self.file("ids.jsonl", b'{"ids": [4294967297]}\n'),
                     says="line 1: 'ids' has 4294967297, not a token id")
        self.refused("run", self.model, "--file", self.folder, says="is a folder, expected a file")
        self.refused("ppl", self.model, self.file("few.txt", b"few"), says="give a longer text or a smaller window")
        self.refused("limits", "--model", self.file("bad.json", b"{"), says="not valid JSON at byte")
        self.refused("limits", "--model", "llama-2-7b", "--machine", "h200", "--html", "/no/such/folder/x.html",
                     says="cannot be written: No such file or directory")

    @unittest.skipUnless(os.geteuid() or shutil.which("setpriv"), "root reads every file, and setpriv is not here")
    def test_what_may_not_be_read(self):
        self.folder.chmod(0o755)
        hidden = self.file("hidden/model.gguf", self.model.read_bytes())
        secret = self.file("secret.gguf", self.model.read_bytes())
        config = self.file("config/config.json", b"{}")
        for path in (hidden.parent, secret, config):
            path.chmod(0)
        self.addCleanup(hidden.parent.chmod, 0o755)
        for path, says in ((secret, "cannot be opened: Permission denied"),
                           (hidden, "cannot be examined: Permission denied"),
                           (hidden.parent, "the folder cannot be read: Permission denied"),
                           (config.parent, "cannot be opened: Permission denied")):
            with self.subTest(path=path):
                nobody = [] if os.geteuid() else ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
                result = subprocess.run([*nobody, CELER, "inspect", path], text=True, capture_output=True, timeout=60)
                self.assertEqual(result.returncode, 2, result.stderr)
                self.assertIn(says, result.stderr)

    def chat(self, model):
        flags = ["--device", "cpu", "--max-tokens", "4", "--chat-template", TEMPLATE]
        return subprocess.Popen([CELER, "chat", model, *flags], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, bufsize=0)

    def test_a_model_that_is_cut_short_while_it_is_used(self):
        size = self.model.stat().st_size
        path = self.file("used.gguf", self.model.read_bytes())
        chat = self.chat(path)
        chat.stdin.write(b"hello\n")
        self.assertTrue(chat.stdout.read(1))  # loaded, and answering
        os.truncate(path, 4096)
        out, err = chat.communicate(b"go on\n" * 3, timeout=60)
        self.assertEqual(chat.returncode, 1, (out, err))
        self.assertEqual(err.decode().splitlines()[-1],
                         f"error: {path}: was cut short while it was in use: it has 4096 bytes and had {size}; "
                         "fetch it again, and let nothing write to it")

    def test_a_conversation_that_is_not_utf8_is_saved(self):
        chat = self.chat(self.model)
        saved = self.folder / "saved.json"
        out, err = chat.communicate(f"/system caf\udce9\n/save {saved}\nhello\n/save {saved}\n"
                                    .encode(errors="surrogateescape"), timeout=60)
        self.assertEqual(chat.returncode, 0, err)
        self.assertEqual(json.loads(saved.read_text(encoding="utf-8"))[0]["content"], "caf\ufffd")


if __name__ == "__main__":
    CELER = os.path.abspath(sys.argv.pop(1))
    unittest.main()
