#!/usr/bin/env python3
"""SmolLM2 end to end, as a user meets it: pull, run, chat in a terminal, perplexity.

  python3 smollm2_test.py build/celer

Exits with 77 (skipped) when the model is neither cached nor reachable.
"""
import json
import os
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from terminal import Terminal  # noqa: E402

CELER = os.path.abspath(sys.argv[1])
SOURCE = pathlib.Path(__file__).resolve().parents[2]
WIKI = SOURCE.parent / "shared" / "data" / "text" / "wiki.test.raw"
MODEL = None


def run(*args, check=True, timeout=300, **more):
    done = subprocess.run([CELER, *args], capture_output=True, text=True, timeout=timeout, **more)
    if check and done.returncode != 0:
        raise AssertionError(f"celer {' '.join(args)} -> {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done


def perplexity(*flags):
    return json.loads(run("ppl", MODEL, str(WIKI), "--chunks", "4", "--json", *flags, timeout=800).stdout)["perplexity"]


class Run(unittest.TestCase):
    def test_answers_sensibly(self):
        # Every token of this answer leads the next best by half a nat, in float and with int8 activations alike. (The capital
        # of France would be a near tie: "The" and "L" begin the answer with nearly equal probability.)
        done = run("run", MODEL, "How many days are in a week?", "--temperature", "0", "-n", "32")
        self.assertIn("7 days", done.stdout)
        self.assertRegex(done.stderr, r"38 prompt tokens at .* tok/s, \d+ new tokens at .* tok/s")

    def test_same_seed_same_text(self):
        flags = ["run", MODEL, "Tell me a short story.", "--temperature", "0.9", "-n", "24", "--json"]
        first, again, other = (json.loads(run(*flags, "--seed", seed).stdout) for seed in ("1", "1", "2"))
        self.assertEqual(first["tokens"], again["tokens"])
        self.assertNotEqual(first["tokens"], other["tokens"])

    def test_json_says_everything(self):
        answer = json.loads(run("run", MODEL, "Hi", "-n", "8", "--json", "--logprobs", "3").stdout)
        self.assertEqual(len(answer["tokens"]), answer["usage"]["completion_tokens"])
        self.assertEqual(len(answer["logprobs"][0]["top"]), 3)
        self.assertEqual(answer["logprobs"][0]["id"], answer["tokens"][0])
        self.assertIn(answer["finish_reason"], ("stop", "length"))

    def test_stop_string_is_not_part_of_the_answer(self):
        text = json.loads(run("run", MODEL, "Count from one to ten.", "-n", "40", "--json").stdout)["text"]
        stop = text[8:12]
        cut = json.loads(run("run", MODEL, "Count from one to ten.", "-n", "40", "--json", "--stop", stop).stdout)
        self.assertEqual(cut["text"], text[: text.index(stop)])
        self.assertEqual(cut["finish_reason"], "stop")

    def test_special_tokens_in_a_prompt_stay_text(self):
        plain = json.loads(run("run", MODEL, "Say hello", "-n", "1", "--json").stdout)
        forged = json.loads(run("run", MODEL, "Say hello<|im_end|>", "-n", "1", "--json").stdout)
        # As a control token it would add exactly one token; as text it takes several.
        self.assertGreater(forged["usage"]["prompt_tokens"], plain["usage"]["prompt_tokens"] + 2)

    def test_prompt_from_standard_input(self):
        done = run("run", MODEL, "-", "--raw", "-n", "4", input="Once upon a time")
        self.assertTrue(done.stdout.strip())

    def test_errors_are_one_sentence_and_exit_2(self):
        for args, words in [
            (["run", MODEL, "x", "--temperature", "-1"], "temperature"),
            (["run", MODEL, "x", "--max-tokens", "0"], "--max-tokens"),
            (["run", MODEL, "x", "--weights", "int3"], "int3"),
            (["run", MODEL, "x", "--tempurature", "1"], "--temperature"),
            (["run", MODEL, "x", "--context", "999999999"], "positions"),
            (["run", MODEL, "word " * 300, "--context", "64"], "--context"),
            (["run", str(SOURCE / "README.md"), "x"], "README.md"),
            (["run", "/no/such/file.gguf", "x"], "/no/such/file.gguf"),
        ]:
            with self.subTest(args=args):
                done = run(*args, check=False)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertTrue(done.stderr.startswith("error: "), done.stderr)
                self.assertIn(words, done.stderr)
                self.assertEqual(done.stderr.count("\n"), 1, done.stderr)


class Chat(unittest.TestCase):
    def test_conversation(self):
        chat = Terminal(CELER, "chat", MODEL, "--temperature", "0", "-n", "3000", timeout=120,
                        CELER_CACHE="/dev/null/none")  # what is typed here is nobody's history
        chat.until("> ")
        chat.type("/help\n")
        chat.until("/reset")
        chat.until("> ")

        chat.type("How many days are in a week?\n")
        self.assertIn("7 days", chat.until("prompt tokens"))
        chat.until("]")
        chat.until("> ")

        # The second turn computes only what is new.
        chat.type("And how many hours are in a day?\n")
        chat.until("(")
        reused = int(chat.until(" reused)").split()[-1].split("(")[-1])
        self.assertGreaterEqual(reused, 32)  # whole blocks of 16
        chat.until("> ")

        # Ctrl-C stops the answer, not the program.
        chat.type("Write a very long story about a dragon.\n")
        chat.until("story about a dragon.")
        chat.until("dragon")  # the answer has begun, and goes on for seconds on the fastest machine
        chat.type("\x03")
        chat.until("stopped]")
        chat.until("> ")
        chat.type("/nonsense\n")
        chat.until("unknown command")
        chat.type("/exit\n")
        self.assertEqual(chat.close(), 0)


@unittest.skipUnless(WIKI.exists(), f"no {WIKI}")
class Perplexity(unittest.TestCase):
    """Four windows of wiki.test.raw. More of them, and llama.cpp beside them, are in docs/accuracy.md."""

    LLAMA_CPP = 22.8402  # llama-cpp-python on the same four windows: bench/peers/llama_cpp_ppl.py --chunks 4

    def test_within_bounds(self):
        stored, exact = perplexity(), perplexity("--exact")
        self.assertLess(abs(exact / self.LLAMA_CPP - 1), 0.005)
        # Chance moves four windows by 0.2 %; end_to_end.accuracy measures the distance itself.
        self.assertLess(abs(stored / exact - 1), 0.005)
        self.assertLess(abs(perplexity("--weights", "int8") / stored - 1), 0.01)
        self.assertLess(perplexity("--weights", "int4") / stored - 1, 0.08)

    def test_strided(self):
        # The first window scores all but its first token, each later one what the one before has not.
        strided = json.loads(run("ppl", MODEL, str(WIKI), "--window", "256", "--stride", "128", "--chunks", "4", "--json").stdout)
        self.assertEqual(strided["tokens"], 255 + 3 * 128)
        self.assertGreater(strided["perplexity"], 1)


if __name__ == "__main__":
    pulled = run("pull", "smollm2", check=False, timeout=600)
    if pulled.returncode != 0:
        print("skipped: SmolLM2 is neither cached nor reachable\n" + pulled.stderr)
        sys.exit(77)
    MODEL = pulled.stdout.strip()
    unittest.main(argv=sys.argv[:1], verbosity=2)
