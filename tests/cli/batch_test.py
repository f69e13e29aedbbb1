#!/usr/bin/env python3
"""celer batch: batch_test.py CELER. Both formats, bad lines, and runs that are killed, stopped and resumed."""
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

CELER = None
TEMPLATE = pathlib.Path(__file__).resolve().parent.parent / "chat_templates" / "chatml.jinja"
SHAPE = ["--layers", "2", "--hidden", "64", "--intermediate", "96", "--vocab", "600", "--heads", "4", "--kv-heads", "2",
         "--head-dim", "32"]
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"


def openai(custom_id, url, **body):
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": {"model": "any", **body}}


def user(text):
    return [{"role": "user", "content": text}]


class BatchCase(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="celer_batch_"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, True)
        cls.model = cls.folder / "model.gguf"
        subprocess.run([CELER, "synth", "llama-3.1-8b", "--weights", "q8_0", "-o", cls.model, *SHAPE], check=True,
                       capture_output=True, timeout=300)
        # No machine that was measured: what is said does not depend on where this runs.
        cls.env = {**os.environ, "CELER_CACHE": str(cls.folder / "cache")}

    def setUp(self):
        self.work = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        self.input, self.out = self.work / "in.jsonl", self.work / "out.jsonl"
        self.errors = self.work / "out.jsonl.errors.jsonl"

    def write(self, lines):
        self.input.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))

    def command(self, *flags):
        return [CELER, "batch", self.model, self.input, "-o", self.out, "--device", "cpu", "--context", "1000",
                "--temperature", "0", "--threads", "1", "--chat-template", TEMPLATE, *map(str, flags)]

    def batch(self, *flags, code=0):
        result = subprocess.run(self.command(*flags), text=True, capture_output=True, timeout=300, env=self.env)
        self.assertEqual(result.returncode, code, result.stderr)
        return result

    def one(self, *flags):
        result = subprocess.run([CELER, "run", self.model, "--device", "cpu", "--context", "1000", "--temperature", "0",
                                 "--chat-template", TEMPLATE, "--json", *map(str, flags)], text=True, capture_output=True,
                                timeout=300, env=self.env, check=True)
        return json.loads(result.stdout)

    @staticmethod
    def read(path):
        text = path.read_text(encoding="utf-8")
        assert text == "" or text.endswith("\n"), text[-100:]
        return [json.loads(line) for line in text.split("\n")[:-1]]  # not splitlines(): U+2028 is no end of a line


class Formats(BatchCase):
    def test_both_formats_answer_as_celer_run_does(self):
        self.write([
            openai("chat", CHAT, messages=user("Why is the sky blue?"), max_tokens=7, user="me", stream=False),
            openai("both", COMPLETION, prompt=["One two", "Three"], max_tokens=5),
            openai("ids", COMPLETION, prompt=[5, 6, 7]),
            {"prompt": "One two", "max_tokens": 5, "id": 17},
            {"messages": user("Why is the sky blue?"), "max_completion_tokens": 7},
            "",
            {"prompt": "", "max_tokens": 3, "temperature": None},
        ])
        summary = json.loads(self.batch("--json").stdout)
        self.assertEqual((summary["requests"], summary["refused"], summary["complete"]), (6, 0, True))
        self.assertFalse(self.errors.read_text())
        answers = {a.get("custom_id") or a["line"]: a for a in self.read(self.out)}
        self.assertEqual(set(answers), {"chat", "both", "ids", 4, 5, 7})

        run = self.one("Why is the sky blue?", "-n", 7)
        chat = answers["chat"]
        self.assertEqual(list(chat), ["id", "custom_id", "response", "error"])
        self.assertIsNone(chat["error"])
        self.assertEqual(chat["response"]["status_code"], 200)
        body = chat["response"]["body"]
        self.assertEqual(body["object"], "chat.completion")
        self.assertEqual(body["model"], "any")
        self.assertEqual(body["choices"], [{"index": 0, "message": {"role": "assistant", "content": run["text"], "refusal": None},
                                            "logprobs": None, "finish_reason": run["finish_reason"]}])
        usage = {key: body["usage"][key] for key in ("prompt_tokens", "completion_tokens", "total_tokens")}
        prompt = run["usage"]["prompt_tokens"]
        self.assertEqual(usage, {"prompt_tokens": prompt, "completion_tokens": 7, "total_tokens": prompt + 7})
        simple = answers[5]
        self.assertEqual((simple["text"], simple["finish_reason"]), (run["text"], run["finish_reason"]))

        texts = [self.one(text, "--raw", "-n", 5)["text"] for text in ("One two", "Three")]
        body = answers["both"]["response"]["body"]
        self.assertEqual(body["object"], "text_completion")
        self.assertEqual([(c["index"], c["text"], c["finish_reason"]) for c in body["choices"]],
                         [(0, texts[0], "length"), (1, texts[1], "length")])
        self.assertEqual((answers[4]["id"], answers[4]["text"]), (17, texts[0]))
        self.assertEqual(answers["ids"]["response"]["body"]["usage"]["prompt_tokens"], 3)
        self.assertEqual(answers["ids"]["response"]["body"]["usage"]["completion_tokens"], 16)  # OpenAI's default
        self.assertEqual(answers[7]["text"], self.one("", "--raw", "-n", 3)["text"])

    def test_parameters_have_their_effect(self):
        plain = self.one("One two", "--raw", "-n", 20, "--logprobs", 2)
        first = plain["tokens"][0]
        stop = plain["text"][4:6]
        self.write([
            {"prompt": "One two", "max_tokens": 20, "logit_bias": {str(first): -100}},
            {"prompt": "One two", "max_tokens": 20, "stop": [stop]},
            {"prompt": "One two", "max_tokens": 20, "logprobs": 2},
            {"prompt": "One two", "max_tokens": 20, "stop_token_ids": [plain["tokens"][2]], "logprobs": 1},
            {"prompt": "One two", "max_tokens": 20, "temperature": 1.5, "seed": 3},
            {"prompt": "One two", "max_tokens": 20, "temperature": 1.5, "seed": 3, "id": "again"},
            {"prompt": "One two", "max_tokens": 20, "temperature": 1.5},
            {"prompt": "One two", "max_tokens": 20, "temperature": 1.5, "top_k": 1},
            openai("c", COMPLETION, prompt="One two", max_tokens=20, logprobs=2),
            openai("m", CHAT, messages=user("One two"), max_tokens=3, logprobs=True, top_logprobs=2),
            openai("form", CHAT, messages=user("One two"), structured_outputs={"choice": ["yes", "no"]}, tools=[], stream=False),
        ])
        self.batch()
        answers = {a.get("custom_id") or a["line"]: a for a in self.read(self.out)}
        self.assertNotEqual(answers[1]["text"], plain["text"])
        self.assertEqual(answers[2]["text"], plain["text"][:plain["text"].index(stop)])
        self.assertEqual(answers[2]["finish_reason"], "stop")
        self.assertLess(answers[2]["usage"]["completion_tokens"], 20)
        self.assertEqual((answers[4]["finish_reason"], answers[4]["usage"]["completion_tokens"]), ("stop", 3))
        self.assertEqual([t["token"] for t in answers[4]["logprobs"]], [t["token"] for t in answers[3]["logprobs"][:2]])  # not its end
        self.assertEqual(answers[5]["text"], answers[6]["text"])
        self.assertNotEqual(answers[5]["text"], answers[7]["text"])
        self.assertEqual(answers[8]["text"], plain["text"])
        wanted = [t["logprob"] for t in plain["logprobs"]]
        self.assertEqual([t["logprob"] for t in answers[3]["logprobs"]], wanted)
        self.assertEqual([[top["logprob"] for top in t["top_logprobs"]] for t in answers[3]["logprobs"]],
                         [[top["logprob"] for top in t["top"]] for t in plain["logprobs"]])
        logprobs = answers["c"]["response"]["body"]["choices"][0]["logprobs"]
        self.assertEqual(logprobs["token_logprobs"], wanted)
        self.assertEqual({len(logprobs[key]) for key in logprobs}, {20})
        self.assertEqual(logprobs["text_offset"][0], 0)
        content = answers["m"]["response"]["body"]["choices"][0]["logprobs"]["content"]
        self.assertEqual(len(content), 3)
        self.assertIn(answers["form"]["response"]["body"]["choices"][0]["message"]["content"], ("yes", "no"))
        for token in content:
            self.assertEqual(set(token), {"token", "logprob", "bytes", "top_logprobs"})
            self.assertEqual(len(token["top_logprobs"]), 2)
            self.assertEqual(bytes(token["bytes"]).decode(errors="replace"), token["token"])

    def test_several_answers(self):
        self.write([
            {"prompt": "One two", "max_tokens": 9, "n": 3, "temperature": 1.5, "seed": 4},
            {"prompt": "One two", "max_tokens": 9, "temperature": 1.5, "seed": 5},  # the second of those three
            openai("n", COMPLETION, prompt=["One two", "Three"], max_tokens=9, n=2, temperature=1.5, seed=4),
            openai("best", COMPLETION, prompt="One two", max_tokens=9, n=1, best_of=3, temperature=1.5, seed=4),
            {"prompt": "One two", "max_tokens": 9, "n": 2, "beam_width": 3},
            {"prompt": [5, 6, 7, 8], "max_tokens": 1, "prompt_logprobs": 1},
        ])
        self.batch()
        answers = {a.get("custom_id") or a["line"]: a for a in self.read(self.out)}
        three = [answer["text"] for answer in answers[1]["answers"]]
        self.assertEqual(len(set(three)), 3)
        self.assertEqual(answers[1]["usage"]["completion_tokens"], 27)
        self.assertEqual(answers[2]["text"], three[1])
        choices = answers["n"]["response"]["body"]["choices"]
        self.assertEqual([c["index"] for c in choices], [0, 1, 2, 3])
        self.assertEqual([c["text"] for c in choices[:2]], three[:2])
        (best,) = answers["best"]["response"]["body"]["choices"]
        self.assertIn(best["text"], three)
        self.assertEqual(len(answers[5]["answers"]), 2)
        scores = answers[6]["prompt_logprobs"]
        self.assertEqual((len(scores), scores[0]), (4, None))
        for score in scores[1:]:
            self.assertLessEqual(score["logprob"], score["top_logprobs"][0]["logprob"])

    def test_flags_hold_where_a_line_says_nothing(self):
        self.write([{"prompt": "One"}, {"prompt": "One", "max_tokens": 2}, openai("c", COMPLETION, prompt="One")])
        self.batch("-n", 4, "--stop", "never said")
        tokens = {a.get("line", 0): a.get("usage") or a["response"]["body"]["usage"] for a in self.read(self.out)}
        self.assertEqual({line: usage["completion_tokens"] for line, usage in tokens.items()}, {1: 4, 2: 2, 0: 4})


class BadLines(BatchCase):
    LINES = (
        ("{\"prompt\": \"x\"", "invalid_json", "not valid JSON at byte"),
        ("[1]", "invalid_line", "the line is [1], expected an object"),
        ("[" * 100000, "invalid_json", "nested 100000 deep"),
        ({"custom_id": "u", "method": "POST", "url": "/v1/embeddings", "body": {}}, "unknown_url", "'url' is \"/v1/embeddings\""),
        ({"custom_id": 5, "method": "POST", "url": CHAT, "body": {}}, "invalid_line", "'custom_id' is 5, expected a string"),
        ({"method": "POST", "url": CHAT, "body": {}}, "invalid_line", "'custom_id' is missing"),
        ({"custom_id": "g", "method": "GET", "url": CHAT, "body": {}}, "invalid_line", "'method' is \"GET\""),
        ({"custom_id": "l", "method": "POST", "url": CHAT, "body": []}, "invalid_line", "'body' is not an object"),
        (openai("good", CHAT, messages=user("x")), "duplicate_id", "custom_id \"good\" stands on an earlier line"),
        ({"id": 3, "prompt": "x"}, "duplicate_id", "id 3 stands on an earlier line"),
        ({"id": [], "prompt": "x"}, "invalid_line", "'id' is [], expected a string or a whole number"),
        (openai("n", CHAT), "invalid_request", "messages is missing"),
        (openai("e", CHAT, messages=[]), "invalid_request", "messages is an array, expected an array of 1 or more items"),
        (openai("r", CHAT, messages=[{"role": "king", "content": "x"}]), "invalid_request", "role is 'king'"),
        (openai("p", CHAT, prompt="x"), "invalid_request", "'prompt' is not supported by /v1/chat/completions"),
        (openai("t", CHAT, messages=user("x"), temprature=1), "invalid_request", "did you mean 'temperature'?"),
        (openai("s", CHAT, messages=user("x"), stream=True), "invalid_request", "'stream' is not supported: it is not available in a batch"),
        (openai("f", CHAT, messages=user("x"), tools=[{"type": "function", "function": {"name": "f"}}]), "invalid_request",
         "'tools' is not supported: it is not available in a batch"),
        (openai("k", COMPLETION, prompt="x", skip_special_tokens=False), "invalid_request", "'skip_special_tokens: false' is not supported"),
        (openai("tl", CHAT, messages=user("x"), top_logprobs=2), "invalid_request", "top_logprobs needs logprobs: true"),
        ({"prompt": "x", "messages": user("x")}, "invalid_request", "it has 'prompt' and 'messages'"),
        ({"text": "x"}, "invalid_request", "'prompt' or 'messages' is missing"),
        ({"id": "nothing"}, "invalid_request", "'prompt' or 'messages' is missing"),
        ({"prompt": "x", "max_tokens": "5"}, "invalid_request", "max_tokens is '5', expected a whole number from 0 to"),
        ({"prompt": "x", "max_tokens": 2.5}, "invalid_request", "max_tokens is 2.5, expected a whole number"),
        ({"prompt": "x", "max_tokens": 0}, "invalid_request", "max_tokens is 0, expected a whole number from 1 on"),
        ({"prompt": "x", "max_tokens": 99999999999999999999}, "invalid_request", "max_tokens is"),
        ({"prompt": "x", "temperature": True}, "invalid_request", "temperature is true, expected a number"),
        ({"prompt": "x", "temperature": -1}, "invalid_request", "temperature is -1, expected a number from 0 to"),
        ({"prompt": "x", "top_p": 1.5}, "invalid_request", "top_p is 1.5, expected a number from"),
        ({"prompt": "x", "stop": ""}, "invalid_request", "stop is '', expected strings of 1 to 1024 bytes"),
        ({"prompt": "x", "n": 2, "best_of": 1}, "invalid_request", "best_of is 1, expected at least n, which is 2"),
        ({"prompt": "x", "logit_bias": {"a": 1}}, "invalid_request", "logit_bias names 'a', expected a token id"),
        ({"prompt": "x", "logit_bias": {"600": 1}}, "invalid_request", "600"),
        ({"prompt": [1, "x"]}, "invalid_request", "prompt is 'x', expected token ids"),
        ({"prompt": [700]}, "invalid_request", "prompt names token 700, but the model has 600"),
        ({"prompt": [5] * 1000}, "context_length_exceeded", "the prompt has 1000 tokens, and the context of 1000 tokens has room for 999 and an answer; raise --context"),
    )

    def test_each_is_reported_and_the_rest_is_done(self):
        good = [openai("good", CHAT, messages=user("hello"), max_tokens=2), {"id": 3, "prompt": "x", "max_tokens": 2}]
        last = {"id": "last", "prompt": "x", "max_tokens": 2}
        self.write([*good, *(line for line, _, _ in self.LINES), last])
        result = self.batch(code=3)
        self.assertIn(f"3 requests answered, {len(self.LINES)} lines refused", result.stderr.replace("\n", " "))
        self.assertEqual({a.get("custom_id") or a["id"] for a in self.read(self.out)}, {"good", 3, "last"})
        errors = {e["line"]: e for e in self.read(self.errors)}
        self.assertEqual(sorted(errors), list(range(3, 3 + len(self.LINES))))
        for number, (line, code, says) in enumerate(self.LINES, 3):
            with self.subTest(line=str(line)[:100]):
                error = errors[number]
                self.assertEqual(error["error"]["code"], code)
                self.assertIn(says, error["error"]["message"])
                self.assertNotIn("\n", error["error"]["message"])
                if isinstance(line, dict) and "custom_id" in line and code in ("invalid_request", "duplicate_id"):
                    self.assertEqual(error["custom_id"], line["custom_id"])
                if isinstance(line, dict) and "custom_id" in line and code == "invalid_request":
                    self.assertEqual(error["response"]["status_code"], 400)
                    self.assertEqual(error["response"]["body"]["error"]["message"], error["error"]["message"])

        again = self.batch(code=3)  # nothing is done or said twice
        self.assertIn("resuming: 3 answers", again.stderr)
        self.assertEqual(len(self.read(self.out)), 3)
        self.assertEqual(len(self.read(self.errors)), len(self.LINES))
        # Lines are tried again if the error file is taken away.
        self.errors.unlink()
        self.write([*good, *[{"prompt": "x", "max_tokens": 1}] * len(self.LINES), last])
        self.batch(code=0)
        self.assertEqual(len(self.read(self.out)), 3 + len(self.LINES))

    def test_files(self):
        self.write([{"prompt": "x", "max_tokens": 1}])
        other = self.work / "other.txt"
        other.write_text("mine\n")
        for flags, says in ((["-o", other], "line 1 was not written by celer batch; choose another file"),
                            (["-o", self.input], "IN and --out are the same file"),
                            (["-o", self.work / "no" / "such"], "cannot be written"),
                            (["-o", self.work], "is a folder, expected the name of a file"),
                            (["-o", self.out, "--errors", self.out], "--out and --errors are the same file")):
            with self.subTest(says=says):
                result = subprocess.run([CELER, "batch", self.model, self.input, *flags], text=True, capture_output=True,
                                        timeout=300, env=self.env)
                self.assertEqual(result.returncode, 2)
                self.assertRegex(result.stderr, r"\Aerror: [^\n]+\n\Z")
                self.assertIn(says, result.stderr)
        self.assertEqual(other.read_text(), "mine\n")
        self.assertEqual(json.loads(self.input.read_text()), {"prompt": "x", "max_tokens": 1})
        self.batch()
        self.batch("--restart")
        self.assertEqual(len(self.read(self.out)), 1)

    def test_memory_does_not_grow_with_the_input(self):
        def peak(lines):
            with self.input.open("w") as file:  # not as one string: a new process counts its parent's memory as its own
                for _ in range(lines):
                    file.write(json.dumps({"prompt": "x", "unknown": "y" * 2000}) + "\n")
            child = subprocess.Popen(self.command("--restart", "-q"), env=self.env)
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            self.assertEqual(child.returncode, 3)
            return usage.ru_maxrss / 1024  # MiB
        small, large = peak(10), peak(15000)  # 30 MB
        self.assertLess(large, small + 16)


class Resuming(BatchCase):
    COUNT = 150

    def lines(self):
        rng = random.Random(5)
        for i in range(self.COUNT):
            words = " ".join(str(rng.randrange(1000)) for _ in range(rng.randrange(1, 30)))
            tokens, hot = rng.randrange(1, 60), rng.choice([0, 0.9])
            if i % 10 == 9:
                yield {"prompt": words, "max_tokens": 0}  # bad
            elif i % 3 == 0:
                yield openai(f"request {i}", CHAT, messages=user(words), max_tokens=tokens, temperature=hot)
            elif i % 3 == 1:
                yield {"id": i, "prompt": words, "max_tokens": tokens, "temperature": hot}
            else:
                yield {"prompt": words, "max_tokens": tokens, "temperature": hot}

    # Which line, and what was answered: what must not depend on how often the run was broken off.
    def answers(self):
        found = []
        for answer in self.read(self.out):
            if "custom_id" in answer:
                found.append((answer["custom_id"], answer["response"]["body"]["choices"][0]["message"]["content"]))
            else:
                found.append((answer["line"], answer["text"]))
        return sorted(found, key=str)

    def reference(self):
        self.batch("--window", 8, code=3)
        answers, errors = self.answers(), sorted(e["line"] for e in self.read(self.errors))
        self.assertEqual(len(answers) + len(errors), self.COUNT)
        self.out.unlink()
        self.errors.unlink()
        return answers, errors

    def start(self, *flags):
        return subprocess.Popen(self.command("--window", 8, *flags), text=True, stderr=subprocess.PIPE, env=self.env)

    def wait_for_lines(self, child, lines):
        end = time.monotonic() + 300
        while child.poll() is None and time.monotonic() < end:
            if self.out.exists() and self.out.read_bytes().count(b"\n") >= lines:
                return
            time.sleep(0.001)

    def test_killed_again_and_again(self):
        self.write(self.lines())
        answers, errors = self.reference()
        rng = random.Random(11)
        kills = 0
        for _ in range(60):
            child = self.start()
            done = self.out.read_bytes().count(b"\n") if self.out.exists() else 0
            if kills == 0:
                time.sleep(0.05)  # while the model is loaded
            else:
                self.wait_for_lines(child, done + rng.randrange(1, 25))
                time.sleep(rng.random() * 0.01)
            child.kill()
            _, said = child.communicate(timeout=300)
            if child.returncode != -signal.SIGKILL:
                self.assertEqual(child.returncode, 3, said)
                if kills > 3:
                    break
                self.out.unlink()  # it was quicker than this: once more
                self.errors.unlink()
                continue
            kills += 1
            # A kill inside of a write is rare: do now and then what it would have done.
            if kills % 3 == 0 and self.out.exists() and self.out.stat().st_size > 0:
                size = self.out.stat().st_size
                last = self.out.read_bytes()[:-1].rfind(b"\n") + 1
                os.truncate(self.out, rng.randrange(last, size))
        self.assertGreater(kills, 3)
        self.batch("--window", 8, code=3)
        self.assertEqual(self.answers(), answers)
        self.assertEqual(sorted(e["line"] for e in self.read(self.errors)), errors)

    def test_ctrl_c_finishes_what_has_begun(self):
        self.write(self.lines())
        answers, errors = self.reference()
        for _ in range(20):  # it may be done before it hears of it
            child = self.start()
            self.wait_for_lines(child, 5)
            child.send_signal(signal.SIGINT)
            _, said = child.communicate(timeout=300)
            if child.returncode != 3:
                break
            self.out.unlink()
            self.errors.unlink()
        self.assertEqual(child.returncode, 130, said)
        self.assertIn("not all was done; the same command goes on from here", said)
        self.assertGreaterEqual(len(self.answers()), 5)
        self.assertLess(len(self.answers()), len(answers))
        self.batch("--window", 8, code=3)
        self.assertEqual(self.answers(), answers)
        self.assertEqual(sorted(e["line"] for e in self.read(self.errors)), errors)

    def test_one_at_a_time(self):
        self.write([{"prompt": "x", "max_tokens": 900, "ignore_eos": True}] * 200)
        child = self.start()
        self.wait_for_lines(child, 1)
        second = subprocess.run(self.command(), text=True, capture_output=True, timeout=300, env=self.env)
        child.kill()
        child.communicate(timeout=300)
        self.assertEqual(second.returncode, 2)
        self.assertIn("another celer batch is writing to it", second.stderr)


if __name__ == "__main__":
    CELER = os.path.abspath(sys.argv.pop(1))
    unittest.main()
