"""LLM, LLMEngine, SamplingParams and celer.load, on a small model with random weights."""
import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import unittest

import numpy as np
import tiny

import celer
from celer import LLM, BeamSearchParams, SamplingParams, StructuredOutputsParams

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


def make_llm(**settings):
    return LLM(tiny.model(), **{"max_model_len": 256, "threads": 1, "kv_cache_memory_bytes": 8 << 20,
                                "chat_template": tiny.TEMPLATE, **settings})


class Generate(tiny.Case):
    @classmethod
    def setUpClass(cls):
        cls.llm = make_llm(seed=0)
        cls.addClassCleanup(cls.llm.close)

    def run_one(self, prompt, params=GREEDY):
        return self.llm.generate(prompt, params, use_tqdm=False)[0]

    def test_as_the_command(self):
        said = tiny.celer_command("run", tiny.model(), "hello there", "--raw", "-q", "-n", 12, "--temperature", 0, "--device", "cpu",
                                  "--threads", 1, "--context", 256, check=True).stdout
        output = self.run_one("hello there", SamplingParams(temperature=0, max_tokens=12))
        self.assertEqual(output.outputs[0].text.strip(), said.strip())

    def test_fields(self):
        output = self.run_one("hello")
        self.assertEqual(output.prompt, "hello")
        self.assertEqual(output.prompt_token_ids, self.llm.get_tokenizer().encode("hello"))
        self.assertTrue(output.finished and output.outputs[0].finished())
        answer = output.outputs[0]
        self.assertEqual((answer.index, len(answer.token_ids), answer.finish_reason, answer.stop_reason), (0, 12, "length", None))
        self.assertIsNone(answer.logprobs)
        self.assertEqual(self.llm.get_tokenizer().decode(answer.token_ids, skip_special_tokens=True), answer.text)

    def test_batch_is_in_order_and_as_one_by_one(self):
        prompts = [f"prompt {i} " * (i % 5 + 1) for i in range(20)]
        together = self.llm.generate(prompts, GREEDY, use_tqdm=False)
        self.assertEqual([one.prompt for one in together], prompts)
        for prompt, output in zip(prompts[:6], together):
            self.assertEqual(self.run_one(prompt).outputs[0].token_ids, output.outputs[0].token_ids)

    def test_forms_of_prompts(self):
        ids = self.llm.get_tokenizer().encode("hello")
        expected = self.run_one("hello").outputs[0].token_ids
        for prompts in ("hello", ["hello"], ids, [ids], tuple(ids), {"prompt": "hello"}, {"prompt_token_ids": ids},
                        [{"prompt_token_ids": ids}], (text for text in ["hello"]), [np.asarray(ids)]):
            self.assertEqual(self.run_one(prompts).outputs[0].token_ids, expected, prompts)
        self.assertEqual(self.llm.generate([], GREEDY, use_tqdm=False), [])

    def test_seeds(self):
        drawn = SamplingParams(temperature=1, seed=7, max_tokens=10, n=3, ignore_eos=True)
        first, second = (self.run_one("x", drawn) for _ in range(2))
        self.assertEqual([one.token_ids for one in first.outputs], [one.token_ids for one in second.outputs])
        self.assertEqual(len({tuple(one.token_ids) for one in first.outputs}), 3)
        self.assertEqual([one.index for one in first.outputs], [0, 1, 2])

    def test_one_parameter_object_for_each_prompt(self):
        outputs = self.llm.generate(["a", "b"], [SamplingParams(max_tokens=2, ignore_eos=True), SamplingParams(max_tokens=5, ignore_eos=True)],
                                    use_tqdm=False)
        self.assertEqual([len(one.outputs[0].token_ids) for one in outputs], [2, 5])

    def test_max_tokens_is_cut_to_the_context(self):
        for wanted in (None, 100000):
            output = self.run_one([1, 2, 3], SamplingParams(max_tokens=wanted, ignore_eos=True))
            self.assertEqual(len(output.outputs[0].token_ids), 253)
            self.assertEqual(output.outputs[0].finish_reason, "length")

    def test_stop(self):
        text = self.run_one("hello").outputs[0].text
        stop = text[4:6]
        shorter = self.run_one("hello", SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, stop=stop)).outputs[0]
        self.assertEqual((shorter.text, shorter.finish_reason, shorter.stop_reason), (text[:text.index(stop)], "stop", stop))
        ids = self.run_one("hello").outputs[0].token_ids
        by_token = self.run_one("hello", SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, stop_token_ids=[ids[3]])).outputs[0]
        self.assertEqual((by_token.token_ids, by_token.stop_reason), (ids[:ids.index(ids[3]) + 1], ids[3]))

    def test_logprobs_are_those_of_the_logits(self):
        output = self.run_one("hello", SamplingParams(temperature=0, max_tokens=5, logprobs=3, prompt_logprobs=2, ignore_eos=True))
        ids = output.prompt_token_ids + output.outputs[0].token_ids
        logits = self.llm._core.native.logits(ids).astype(np.float64)
        logprobs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        start = len(output.prompt_token_ids) - 1
        for i, row in enumerate(output.outputs[0].logprobs):
            best = np.argsort(-logprobs[start + i])[:3]
            self.assertEqual(set(row), set(best.tolist()))
            for token, entry in row.items():
                self.assertAlmostEqual(entry.logprob, logprobs[start + i][token], places=3)
            self.assertEqual(row[int(best[0])].rank, 1)
        self.assertAlmostEqual(output.outputs[0].cumulative_logprob, sum(
            row[token].logprob for row, token in zip(output.outputs[0].logprobs, output.outputs[0].token_ids)), places=4)
        self.assertIsNone(output.prompt_logprobs[0])
        self.assertEqual(len(output.prompt_logprobs), len(output.prompt_token_ids))
        for i, row in enumerate(output.prompt_logprobs[1:]):
            self.assertAlmostEqual(row[output.prompt_token_ids[i + 1]].logprob, logprobs[i][output.prompt_token_ids[i + 1]], places=3)
        scores = self.llm._core.native.score(ids, 1)
        np.testing.assert_allclose(scores, [logprobs[i][token] for i, token in enumerate(ids[1:])], atol=1e-3)

    def test_structured_outputs(self):
        def answer(**form):
            params = SamplingParams(temperature=1, seed=1, max_tokens=60, structured_outputs=StructuredOutputsParams(**form))
            return self.run_one("x", params).outputs[0].text
        self.assertIn(answer(choice=["yes", "no"]), ("yes", "no"))
        self.assertRegex(answer(regex="[ab]{3}-[0-9]{2}"), r"^[ab]{3}-\d\d$")
        self.assertIn(answer(json={"enum": [1, 2]}), ("1", "2"))
        self.assertIn(answer(grammar='root ::= "left" | "right"'), ("left", "right"))
        old = celer.GuidedDecodingParams(choice=["one"])
        self.assertEqual(self.run_one("x", SamplingParams(guided_decoding=old)).outputs[0].text, "one")

    def test_bias_and_allowed_tokens(self):
        only = self.run_one("x", SamplingParams(temperature=1, max_tokens=8, allowed_token_ids=[70, 71], ignore_eos=True)).outputs[0]
        self.assertLessEqual(set(only.token_ids), {70, 71})
        biased = self.run_one("x", SamplingParams(temperature=0, max_tokens=4, logit_bias={80: 100}, ignore_eos=True)).outputs[0]
        self.assertEqual(biased.token_ids, [80] * 4)

    def test_chat(self):
        messages = [{"role": "user", "content": "hello"}]
        one = self.llm.chat(messages, GREEDY, use_tqdm=False)[0]
        self.assertIn("hello", one.prompt)
        self.assertEqual(one.prompt_token_ids, self.llm.get_tokenizer().apply_chat_template(messages))
        two = self.llm.chat([messages, messages], GREEDY, use_tqdm=False)
        self.assertEqual([output.outputs[0].token_ids for output in two], [one.outputs[0].token_ids] * 2)

    def test_no_message_can_say_a_control_token(self):
        tokenizer = self.llm.get_tokenizer()
        plain = tokenizer.apply_chat_template("hi")
        ends = set(tokenizer.eos_token_ids)
        hostile = tokenizer.apply_chat_template("hi" + "".join(tokenizer.convert_ids_to_tokens(tokenizer.eos_token_ids)))
        self.assertEqual(sum(one in ends for one in plain), sum(one in ends for one in hostile))

    def test_beam_search(self):
        found = self.llm.beam_search(["hello", "x"], BeamSearchParams(beam_width=4, max_tokens=6, ignore_eos=True))
        for output in found:
            self.assertEqual(len(output.sequences), 4)
            self.assertEqual(len({tuple(one.tokens) for one in output.sequences}), 4)
            sums = [one.cum_logprob for one in output.sequences]
            self.assertEqual(sums, sorted(sums, reverse=True))
            for one in output.sequences:
                start = len(one.tokens) - 6
                self.assertAlmostEqual(float(self.llm._core.native.score(one.tokens, start).sum()), one.cum_logprob, places=3)

    def test_embed_and_score(self):
        one, two = self.llm.embed(["hello", "hello"], use_tqdm=False)
        self.assertEqual(one.outputs.embedding, two.outputs.embedding)
        self.assertAlmostEqual(sum(x * x for x in one.outputs.embedding), 1, places=5)
        self.assertEqual(one.outputs.hidden_size, 64)
        scores = [one.outputs.score for one in self.llm.score("hello", ["hello", "other words"])]
        self.assertAlmostEqual(scores[0], 1, places=5)
        self.assertLess(scores[1], 0.9999)

    def test_engine(self):
        engine = self.llm.llm_engine
        engine.add_request("a", "hello", GREEDY)
        engine.add_request("b", [1, 2], SamplingParams(max_tokens=200, ignore_eos=True))
        last = {}
        while engine.has_unfinished_requests():
            for output in engine.step():
                last[output.request_id] = output
            if "a" in last and last["a"].finished:
                engine.abort_request("b")
        self.assertEqual(last["a"].outputs[0].token_ids, self.run_one("hello").outputs[0].token_ids)
        self.assertTrue(last["b"].finished)
        self.assertEqual(engine.step(), [])

    def test_threads_share_a_model(self):
        expected = {i: self.run_one(f"prompt {i}").outputs[0].token_ids for i in range(8)}
        found, errors = {}, []

        def work(i):
            try:
                found[i] = self.run_one(f"prompt {i}").outputs[0].token_ids
            except Exception as error:  # pylint: disable=broad-except
                errors.append(error)
        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        self.assertEqual((errors, found), ([], expected))

    def test_an_error_of_one_prompt_leaves_nothing_in_flight(self):
        before = self.llm._core.native.stats()
        self.assert_error(ValueError, "999999", lambda: self.llm.generate([[1, 2], [999999]], GREEDY, use_tqdm=False))
        self.run_one("hello")
        after = self.llm._core.native.stats()
        self.assertEqual((after["running"], after["waiting"], after["kv_blocks_used"]), (0, 0, 0))
        self.assertEqual(after["requests"], after["finished"])
        self.assertGreater(after["requests"], before["requests"])

    def test_ranks_that_share_every_layer(self):
        with contextlib.closing(make_llm(tensor_parallel_size=2, threads=2, device="cpu")) as two:
            outputs = two.generate(["hello", "x"], GREEDY, use_tqdm=False)
        # Sums are added in another order: in the end tokens that are nearly as likely may differ.
        self.assertEqual([one.outputs[0].token_ids[:6] for one in outputs],
                         [self.run_one(text).outputs[0].token_ids[:6] for text in ("hello", "x")])

    def test_bad_arguments(self):
        generate = lambda prompts="x", **params: self.llm.generate(prompts, SamplingParams(**params), use_tqdm=False)  # noqa: E731
        path = tiny.model()
        cases = [
            (TypeError, "max_model_len", lambda: LLM(path, max_modellen=3)),
            (TypeError, "it has", lambda: LLM(path, zzz=3)),
            (FileNotFoundError, "no such file", lambda: LLM("/no/such/model")),
            (NotImplementedError, "one engine", lambda: LLM(path, pipeline_parallel_size=2)),
            (ValueError, "sizes that work", lambda: LLM(path, tensor_parallel_size=3, device="cpu")),
            (ValueError, "tensor_parallel_size", lambda: LLM(path, tensor_parallel_size=0)),
            (ValueError, "tensor_parallel_size", lambda: LLM(path, tensor_parallel_size=65)),
            (ValueError, "max_cpu_loras", lambda: LLM(path, enable_lora=True, max_loras=4, max_cpu_loras=2)),
            (ValueError, "max_lora_rank", lambda: LLM(path, enable_lora=True, max_lora_rank=0)),
            (ValueError, "dtype", lambda: LLM(path, dtype="float7")),
            (ValueError, "int3", lambda: LLM(path, quantization="int3")),
            (ValueError, "fp9", lambda: LLM(path, kv_cache_dtype="fp9")),
            (ValueError, "max_model_len", lambda: LLM(path, max_model_len=0)),
            (ValueError, "gpu_memory_utilization", lambda: LLM(path, gpu_memory_utilization=1.5)),
            (ValueError, "CUDA", lambda: LLM(path, device="cuda")),
            (ValueError, "tpu", lambda: LLM(path, device="tpu")),
            (NotImplementedError, "revision", lambda: LLM(path, revision="x")),
            (TypeError, "speculative_config", lambda: LLM(path, speculative_config={"depth": 3})),
            (TypeError, "temperature", lambda: SamplingParams(temprature=1)),
            (ValueError, "temperature", lambda: SamplingParams(temperature=-1)),
            (ValueError, "temperature", lambda: SamplingParams(temperature=float("nan"))),
            (TypeError, "temperature", lambda: SamplingParams(temperature="hot")),
            (ValueError, "top_p", lambda: SamplingParams(top_p=0)),
            (ValueError, "top_p", lambda: SamplingParams(top_p=1.5)),
            (ValueError, "top_k", lambda: SamplingParams(top_k=-2)),
            (TypeError, "top_k", lambda: SamplingParams(top_k=1.5)),
            (ValueError, "min_p", lambda: SamplingParams(min_p=2)),
            (ValueError, "n is", lambda: SamplingParams(n=0)),
            (TypeError, "n is", lambda: SamplingParams(n=True)),
            (ValueError, "best_of", lambda: SamplingParams(n=3, best_of=2)),
            (ValueError, "max_tokens", lambda: SamplingParams(max_tokens=0)),
            (ValueError, "min_tokens", lambda: SamplingParams(max_tokens=2, min_tokens=3)),
            (ValueError, "logprobs", lambda: SamplingParams(logprobs=21)),
            (ValueError, "prompt_logprobs", lambda: SamplingParams(prompt_logprobs=-1)),
            (ValueError, "presence_penalty", lambda: SamplingParams(presence_penalty=3)),
            (ValueError, "repetition_penalty", lambda: SamplingParams(repetition_penalty=0)),
            (TypeError, "stop", lambda: SamplingParams(stop=[1])),
            (TypeError, "stop_token_ids", lambda: SamplingParams(stop_token_ids=["a"])),
            (ValueError, "logit_bias", lambda: SamplingParams(logit_bias={1: 1000})),
            (ValueError, "allowed_token_ids", lambda: SamplingParams(allowed_token_ids=[])),
            (NotImplementedError, "detokenize", lambda: SamplingParams(detokenize=False)),
            (ValueError, "expected one of", lambda: StructuredOutputsParams(regex="a", choice=["b"])),
            (ValueError, "expected one of", lambda: StructuredOutputsParams()),
            (ValueError, "one of them", lambda: SamplingParams(structured_outputs=StructuredOutputsParams(regex="a"),
                                                              guided_decoding=StructuredOutputsParams(regex="a"))),
            (ValueError, "JSON schema", lambda: generate(structured_outputs=StructuredOutputsParams(json="{"))),
            (ValueError, "regular expression", lambda: generate(structured_outputs=StructuredOutputsParams(regex="(a"))),
            (ValueError, "stop_token_ids", lambda: generate(stop_token_ids=[600])),
            (ValueError, "allowed_token_ids", lambda: generate(allowed_token_ids=[600])),
            (ValueError, "600", lambda: generate([600])),
            (ValueError, "tokens", lambda: generate([1] * 256)),
            (TypeError, "prompt", lambda: generate([None])),
            (TypeError, "prompt", lambda: generate(7)),
            (TypeError, "prompt_token_ids", lambda: generate({"text": "x"})),
            (NotImplementedError, "multi_modal", lambda: generate({"prompt": "x", "multi_modal_data": {"image": 1}})),
            (TypeError, "use_tqdm", lambda: self.llm.generate("x", use_tqmd=False)),
            (TypeError, "SamplingParams", lambda: self.llm.generate("x", {"temperature": 1}, use_tqdm=False)),
            (ValueError, "2 items for 1", lambda: self.llm.generate("x", [GREEDY, GREEDY], use_tqdm=False)),
            (TypeError, "lora", lambda: self.llm.generate("x", GREEDY, lora_request=1)),
            (TypeError, "threads", lambda: LLM(path, threads="two")),
            (ValueError, "threads", lambda: LLM(path, threads=2**70)),
            (ValueError, "swap_space", lambda: LLM(path, swap_space=-1)),
            (TypeError, "swap_space", lambda: LLM(path, swap_space="4")),
            (TypeError, "deterministic", lambda: LLM(path, deterministic="no")),
            (TypeError, "a model of transformers", lambda: LLM(None)),
            (ValueError, "zero byte", lambda: LLM(path + "\0.gguf")),
            (ValueError, "not UTF-8", lambda: LLM("model\udcff.gguf")),
            (TypeError, "whole numbers", lambda: generate([[1.5, 2.0]])),
            (TypeError, "whole numbers", lambda: generate([["1", "2"]])),
            (ValueError, "a token of a prompt", lambda: generate([[2**70]])),
            (ValueError, "prompt is -1", lambda: generate([[-1]])),
            (ValueError, "surrogate", lambda: generate("x\ud800")),
            (ValueError, "surrogate", lambda: SamplingParams(stop="\udfff")),
            (TypeError, "stop", lambda: SamplingParams(stop=3)),
            (ValueError, "seed", lambda: SamplingParams(seed=2**64)),
            (TypeError, "logit_bias", lambda: SamplingParams(logit_bias={"a": 1})),
            (ValueError, "JSON", lambda: self.llm.chat([{"role": "user", "content": {1, 2}}], GREEDY, use_tqdm=False)),
            (TypeError, "a message", lambda: self.llm.chat([[7]], GREEDY, use_tqdm=False)),
            (TypeError, "messages", lambda: self.llm.chat("hello", GREEDY)),
            (ValueError, "role", lambda: self.llm.chat([{"content": "x"}], GREEDY, use_tqdm=False)),
            (ValueError, "beam_width", lambda: BeamSearchParams(beam_width=0, max_tokens=3)),
            (TypeError, "BeamSearchParams", lambda: self.llm.beam_search("x", GREEDY)),
            (ValueError, "data_1", lambda: self.llm.score(["a", "b"], ["c"])),
            (ValueError, "token 999999", lambda: self.llm.embed([[1, 2], [999999]], use_tqdm=False)),
            (TypeError, "pickled", lambda: pickle.dumps(self.llm)),
        ]
        self.assertGreaterEqual(len(cases), 50)
        for i, (kind, words, call) in enumerate(cases):
            with self.subTest(i=i, words=words):
                self.assert_error(kind, words, call)
        self.assertEqual(len(self.run_one("hello").outputs[0].token_ids), 12)  # all is as before


class Threads(tiny.Case):
    def test_closing_while_others_use_it(self):
        """Whoever is in a call gets an answer or an error, and nothing else happens."""
        for work in (lambda llm: llm.generate("x", SamplingParams(max_tokens=40, ignore_eos=True), use_tqdm=False),
                     lambda llm: llm._core.native.logits([1] * 40), lambda llm: llm._core.native.encode("word " * 200, True, True),
                     lambda llm: llm.embed(["x"] * 4, use_tqdm=False), lambda llm: llm._core.native.stats()):
            llm, others = make_llm(), []

            def use():
                with self.assertRaises((ValueError, RuntimeError)):
                    while True:
                        work(llm)  # pylint: disable=cell-var-from-loop
                others.append(True)
            threads = [threading.Thread(target=use) for _ in range(3)]
            for one in threads:
                one.start()
            time.sleep(0.05)
            llm.close()
            for one in threads:
                one.join()
            self.assertEqual(others, [True] * 3)


class Own(tiny.Case):
    @classmethod
    def setUpClass(cls):
        cls.model = celer.load(tiny.model(), chat_template=str(tiny.TEMPLATE), **tiny.SETTINGS)
        cls.addClassCleanup(cls.model.close)

    def test_pieces_are_the_text(self):
        answer = self.model.generate("hello", max_tokens=20, temperature=0)
        pieces = list(answer)
        self.assertEqual("".join(pieces), answer.text_so_far)
        self.assertEqual(str(self.model.generate("hello", max_tokens=20, temperature=0)), answer.text)
        self.assertIn(answer.finish_reason, ("length", "stop"))
        self.assertEqual(str(self.model.chat("hello", max_tokens=4, temperature=0)),
                         str(self.model.chat([{"role": "user", "content": "hello"}], max_tokens=4, temperature=0)))

    def test_leaving_early_cancels(self):
        for leave in ("close", "del", "with"):
            answer = self.model.generate("hello", max_tokens=240, ignore_eos=True)
            next(answer)
            if leave == "close":
                answer.close()
            elif leave == "with":
                with answer:
                    pass
            del answer  # no gc.collect(): nothing refers to itself
            self.model.generate("x", max_tokens=1).text
            stats = self.model.stats
            self.assertEqual((leave, stats["running"], stats["kv_blocks_used"]), (leave, 0, 0))
            self.assertEqual(stats["requests"], stats["finished"])

    def test_tokenizer(self):
        tokenizer = self.model.tokenizer
        ids = tokenizer.encode("Hello world, 42!")
        self.assertEqual(tokenizer.decode(ids, skip_special_tokens=True), "Hello world, 42!")
        self.assertEqual(tokenizer("a")["input_ids"], tokenizer.encode("a"))
        self.assertEqual(tokenizer(["a", "b"])["input_ids"], [tokenizer.encode("a"), tokenizer.encode("b")])
        self.assertEqual(len(tokenizer), 600)

    def test_perplexity_is_that_of_the_command(self):
        text = "The quick brown fox jumps over the lazy dog. " * 20
        path = os.path.join(tiny.FOLDER.name, "text.txt")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        said = tiny.celer_command("ppl", tiny.model(), path, "--window", 64, "--json", "--threads", 1, "--device", "cpu", check=True).stdout
        expected = float(said.split('"perplexity": ')[1].split(",")[0])
        self.assertAlmostEqual(self.model.perplexity(text, window=64) / expected, 1, places=3)

    def test_closed(self):
        model = celer.load(tiny.model(), **tiny.SETTINGS)
        running = model.generate("x", max_tokens=200, ignore_eos=True)
        model.close()
        model.close()
        self.assert_error(ValueError, "closed", lambda: model.generate("x"))
        self.assert_error(ValueError, "closed", lambda: model.logits([1]))
        list(running)
        self.assertEqual(running.finish_reason, "abort")
        self.assertIn("closed", repr(model))

    def test_bad_arguments(self):
        model = self.model
        for kind, words, call in [
                (ValueError, "context", lambda: model.logits([1] * 256)), (ValueError, "600", lambda: model.logits([600])),
                (ValueError, "empty", lambda: model.logits([])), (ValueError, "first", lambda: model.score([1, 2], 0)),
                (ValueError, "window", lambda: model.perplexity("x " * 50, window=2)),
                (ValueError, "the text", lambda: model.perplexity("x", window=64)),
                (ValueError, "-1", lambda: model.tokenizer.decode([-1])), (TypeError, "tokens", lambda: model.tokenizer.decode("ab")),
                (TypeError, "tokens", lambda: model.logits([0.5])), (ValueError, "tokens", lambda: model.logits([2**40])),
                (TypeError, "first", lambda: model.score([1, 2], "a")), (ValueError, "first", lambda: model.score([1, 2], 2**70)),
                (TypeError, "text", lambda: model.tokenizer.encode(b"x")), (ValueError, "surrogate", lambda: model.tokenizer.encode("\ud800")),
                (TypeError, "window", lambda: model.perplexity("x", window="a")), (TypeError, "prompt", lambda: model.generate(None)),
                (TypeError, "weights", lambda: celer.load(tiny.model(), weights=8)), (TypeError, "prefix_cache", lambda: celer.load(tiny.model(), prefix_cache="x")),
                (TypeError, "threads", lambda: celer.load(tiny.model(), thread=1)),
                (ValueError, "threads", lambda: celer.load(tiny.model(), threads=-1)),
                (ValueError, "pooling", lambda: celer.load(tiny.model(), pooling="max")),
                (ValueError, "kv_memory", lambda: celer.load(tiny.model(), kv_memory="lots")),
                (TypeError, "pickled", lambda: pickle.dumps(model)),
                (AttributeError, "no attribute", lambda: celer.loaded)]:
            with self.subTest(words=words):
                self.assert_error(kind, words, call)


def in_child(code, model=None):
    """A script of its own: what it prints."""
    done = subprocess.run([sys.executable, "-c", code, model or tiny.model()], capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout, done.stderr


class Process(tiny.Case):
    @unittest.skipIf(len(os.sched_getaffinity(0)) < 2, "needs two cores")
    def test_another_thread_keeps_its_speed(self):
        """A loop in Python beside generate() is as fast as alone, because no step holds the GIL: 0.9 and more on an idle machine. What
        the loop waited for a core is left out; what it waited for the GIL is not."""
        code, out, err = in_child("""
import os, statistics, sys, threading, time
import celer
llm = celer.LLM(sys.argv[1], max_model_len=1024, threads=1, kv_cache_memory_bytes=64 << 20)
params = celer.SamplingParams(max_tokens=64, ignore_eos=True)
generate = lambda: llm.generate(["x"] * 4, params, use_tqdm=False)
def waited():  # for a core, in seconds
    try:
        with open("/proc/thread-self/schedstat") as file:
            return int(file.read().split()[1]) / 1e9
    except OSError:
        return 0.0
def count(until, into):
    rounds, began, queued = 0, time.perf_counter(), waited()
    while not until.is_set():
        rounds += 1
    into.append(rounds / (time.perf_counter() - began - (waited() - queued)))
def speed(work):
    into, until = [], threading.Event()
    thread = threading.Thread(target=count, args=(until, into))
    thread.start()
    began = time.perf_counter()
    work()
    took = time.perf_counter() - began
    until.set()
    thread.join()
    return into[0], took
_, took = speed(generate)
ratios = []
for _ in range(5):
    alone, _ = speed(lambda: time.sleep(took))
    beside, _ = speed(generate)
    ratios.append(beside / alone)
print(statistics.median(ratios))
""", tiny.larger())
        self.assertEqual(code, 0, err)
        print(f"a thread beside generate(): {float(out):.2f} of its speed alone")
        self.assertGreater(float(out), 0.5)

    def test_ctrl_c_ends_within_a_step(self):
        """Of steps of some milliseconds. The median of five, because a busy machine may let the main thread wait."""
        code, out, err = in_child("""
import os, signal, statistics, sys, threading, time
import celer
signal.signal(signal.SIGINT, signal.default_int_handler)  # what shells start in the background ignores it
llm = celer.LLM(sys.argv[1], max_model_len=4096, threads=1, kv_cache_memory_bytes=64 << 20)
steps = lambda: llm._core.native.stats()["steps"]
at = 0
def interrupt(after):
    global at
    while steps() < after:
        time.sleep(0.0005)
    at = steps()
    os.kill(os.getpid(), signal.SIGINT)
more = []
for _ in range(5):
    thread = threading.Thread(target=interrupt, args=(steps() + 6,))
    thread.start()
    try:
        llm.generate(["x"] * 4, celer.SamplingParams(max_tokens=2000, ignore_eos=True), use_tqdm=False)
        sys.exit("not interrupted")
    except KeyboardInterrupt:
        more.append(steps() - at)
    thread.join()
    assert len(llm.generate("x", celer.SamplingParams(max_tokens=3, ignore_eos=True), use_tqdm=False)[0].outputs[0].token_ids) == 3
stats = llm._core.native.stats()
print(statistics.median(more), stats["running"], stats["kv_blocks_used"])
""", tiny.larger())
        self.assertEqual(code, 0, err)
        median, running, used = map(float, out.split())
        self.assertLessEqual(median, 2)  # the one that runs, and the one in which it is seen
        self.assertEqual((running, used), (0, 0))

    @unittest.skipIf(tiny.SANITIZED, "sanitizers keep memory that was freed")
    def test_del_gives_memory_back(self):
        """After a model came and went, to 5 %: its weights, its KV cache, the stacks of its threads."""
        for make, use in [("celer.load(sys.argv[1], weights='f32', threads=2, context=1024, kv_memory='64MiB')", "generate('x', max_tokens=4).text"),
                          ("celer.LLM(sys.argv[1], dtype='float32', threads=2, max_model_len=1024, kv_cache_memory_bytes=64 << 20)",
                           "generate(['x'] * 8, celer.SamplingParams(max_tokens=4), use_tqdm=False)"),
                          ("celer.AsyncLLM(sys.argv[1], dtype='float32', threads=2, max_model_len=1024)", "get_num_unfinished_requests()")]:
            code, out, err = in_child(f"""
import gc, sys
import celer
def rss():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
found = []
for _ in range(3):
    found.append(rss())
    llm = {make}
    llm.{use}
    found.append(rss())
    del llm
print(*found, rss())
""", tiny.larger())
            self.assertEqual(code, 0, err)
            _, first, before, second, after, _, last = map(int, out.split())
            with self.subTest(make=make, megabytes=[int(one) / 1e6 for one in out.split()]):
                self.assertGreater(min(first, second) - before, 100e6)
                self.assertLess(abs(after / before - 1), 0.05)
                self.assertLess(abs(last / before - 1), 0.05)

    def test_ctrl_c_ends_a_call_and_leaves_the_model_usable(self):
        code, out, err = in_child("""
import os, signal, sys, threading, time
import celer
signal.signal(signal.SIGINT, signal.default_int_handler)  # what shells start in the background ignores it
llm = celer.LLM(sys.argv[1], max_model_len=8192, threads=1, kv_cache_memory_bytes=64 << 20)
def interrupt():
    while llm._core.native.stats()["generated_tokens"] < 40:
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt).start()
try:
    llm.generate(["x"] * 4, celer.SamplingParams(max_tokens=8000, ignore_eos=True), use_tqdm=False)
    print("not interrupted")
except KeyboardInterrupt:
    print("interrupted")
print(len(llm.generate("x", celer.SamplingParams(max_tokens=3, ignore_eos=True), use_tqdm=False)[0].outputs[0].token_ids))
stats = llm._core.native.stats()
print(stats["running"], stats["kv_blocks_used"])
""")
        self.assertEqual((code, out.split()), (0, ["interrupted", "3", "0", "0"]), err)

    def test_fork(self):
        """A child says what is wrong and ends; it neither hangs nor disturbs its parent."""
        code, out, err = in_child("""
import os, sys
import celer
model = celer.load(sys.argv[1], threads=2, context=128, kv_memory="4MiB")
model.generate("x", max_tokens=2).text
child = os.fork()
if child == 0:
    for call in (lambda: model.generate("x"), lambda: model.logits([1]), lambda: celer.load(sys.argv[1])):
        try:
            call()
            print("no error")
        except RuntimeError as error:
            print("spawn" in str(error))
    del model
    sys.stdout.flush()
    sys.exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), len(model.generate("x", max_tokens=2, ignore_eos=True).text) > 0)
""")
        self.assertEqual((code, out.split()), (0, ["True", "True", "True", "7", "True"]), err)

    def test_a_child_may_load_what_its_parent_did_not(self):
        code, out, err = in_child("""
import os, sys
import celer
celer.limits("llama-3.1-8b", "rtx4090")
child = os.fork()
if child == 0:
    print(len(celer.load(sys.argv[1], threads=1, context=128, kv_memory="4MiB").generate("x", max_tokens=2, ignore_eos=True).text) > 0)
    sys.stdout.flush()
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""")
        self.assertEqual((code, out.split()), (0, ["True", "0"]), err)

    @unittest.skipIf(tiny.SANITIZED, "sanitizers keep memory that was freed")
    def test_cycles_do_not_grow(self):
        """1,000 models that are loaded, used and deleted; one in ten is closed with a request in flight."""
        code, out, err = in_child("""
import gc, sys
import celer
def rss():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
def cycle(i):
    model = celer.load(sys.argv[1], threads=1, context=128, kv_memory="4MiB")
    answer = model.generate("x", max_tokens=2 if i % 10 else 100)
    if i % 10:
        answer.text
    else:
        model.close()
for i in range(700):  # until the allocators have what they keep
    cycle(i)
gc.collect()
before = rss()
for i in range(1000):
    cycle(i)
gc.collect()
print((rss() - before) / 2**20)
""")
        self.assertEqual(code, 0, err)
        self.assertLess(float(out), 8)  # MiB; one leaked model of 4 MiB each time would be 4,000

    def test_exit_with_requests_in_flight(self):
        code, out, err = in_child("""
import sys
import celer
model = celer.load(sys.argv[1], threads=1, context=4096, kv_memory="16MiB")
answer = model.generate("x", max_tokens=4000, ignore_eos=True)
next(answer)
print("ends")
""")
        self.assertEqual((code, out, err), (0, "ends\n", ""))

    def test_exit_with_daemon_threads(self):
        """They wait in the library, or for Python's lock, when the interpreter ends."""
        for _ in range(3):
            code, out, err = in_child("""
import sys, threading, time
import celer
model = celer.load(sys.argv[1], threads=1, context=4096, kv_memory="64MiB")
def read():
    for _ in range(1000):
        model.generate("x", max_tokens=2000, ignore_eos=True).text
def score():
    while True:
        model.logits([1, 2, 3])
for work in (read, read, score, score):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.2)
print("ends")
""")
            self.assertEqual((code, out, err), (0, "ends\n", ""))

    @unittest.skipIf(tiny.SANITIZED, "sanitizers need much address space")
    def test_threads_that_the_system_refuses(self):
        """For want of address space, in steps, so that it happens at every place; each time an exception, or fewer threads."""
        code, out, err = in_child("""
import logging, resource, sys
import celer
logging.basicConfig(level=logging.ERROR)
celer.load(sys.argv[1], threads=2, context=128, kv_memory="4MiB").close()
with open("/proc/self/statm") as file:
    had = int(file.read().split()[0]) * 4096
found = set()
for more in range(10, 1600, 100):
    resource.setrlimit(resource.RLIMIT_AS, (had + (more << 20), resource.RLIM_INFINITY))
    try:
        model = celer.load(sys.argv[1], threads=60, context=128, kv_memory="4MiB")
        found.add(model.generate("x", max_tokens=3, ignore_eos=True).text and "answered")
        model.close()
    except (MemoryError, RuntimeError, OSError) as error:
        found.add(type(error).__name__)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(len(celer.load(sys.argv[1], threads=2, context=128, kv_memory="4MiB").generate("x", max_tokens=3, ignore_eos=True).text) > 0, "answered" in found)
""")
        self.assertEqual((code, out), (0, "True True\n"), err)

    def test_import_reads_little(self):
        code, out, err = in_child("import sys, celer; print('numpy' in sys.modules, 'torch' in sys.modules, 'tqdm' in sys.modules)")
        self.assertEqual((code, out), (0, "False False False\n"), err)

    def test_the_program_comes_with_the_package(self):
        self.assertEqual(tiny.celer_command("--version").stdout, f"celer {celer.__version__}\n")
        self.assertEqual(tiny.celer_command("nope").returncode, 2)
        # It has signals of its own.
        process = subprocess.Popen([sys.executable, "-m", "celer", "serve", tiny.model(), "--port", "0", "--context", "128"],
                                   stderr=subprocess.PIPE, text=True)
        while "ready" not in process.stderr.readline():
            self.assertIsNone(process.poll())
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        self.assertIn(process.returncode, (0, 143))


if __name__ == "__main__":
    unittest.main(verbosity=2)
