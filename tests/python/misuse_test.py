"""What a user's script does wrong, or does at an odd moment: an exception with a sentence, or the right answer, and never a crash,
a hang, or memory that stays."""
import gc
import random
import threading
import time
import unittest

import numpy as np
import tiny
from onnx import TensorProto, helper, numpy_helper

import celer
from celer import LLM, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
LONG = SamplingParams(max_tokens=230, ignore_eos=True)
RANDOM = np.random.default_rng(1)
WEIGHT = RANDOM.standard_normal((16, 8), np.float32)


def dense(kind=TensorProto.FLOAT):
    """y = x w, x [n, 16]."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [helper.make_tensor_value_info("x", kind, ["n", 16])],
        [helper.make_tensor_value_info("y", kind, ["n", 8])], [numpy_helper.from_array(WEIGHT, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()


def identity(kind):
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [helper.make_tensor_value_info("x", kind, ["n"])],
                              [helper.make_tensor_value_info("y", kind, ["n"])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()


class Models(tiny.Case):
    @classmethod
    def setUpClass(cls):
        cls.llm = LLM(tiny.model(), max_model_len=256, threads=1, kv_cache_memory_bytes=8 << 20, chat_template=tiny.TEMPLATE)
        cls.model = celer.load(tiny.model(), chat_template=str(tiny.TEMPLATE), **tiny.SETTINGS)
        cls.addClassCleanup(cls.llm.close)
        cls.addClassCleanup(cls.model.close)

    def settled(self, model):
        stats = model.stats
        for _ in range(500):
            if stats["requests"] == stats["finished"] and stats["kv_blocks_used"] == 0:
                break
            time.sleep(0.01)
            stats = model.stats
        self.assertEqual((stats["running"], stats["waiting"], stats["kv_blocks_used"], stats["requests"] - stats["finished"]), (0, 0, 0, 0))

    def test_wrong_types_and_huge_numbers(self):
        llm, model, generate = self.llm, self.model, lambda prompts, params=GREEDY: self.llm.generate(prompts, params, use_tqdm=False)
        for kind, words, call in [
                (TypeError, "prompts", lambda: generate(b"bytes")), (TypeError, "prompt", lambda: generate([b"bytes"])),
                (TypeError, "prompts", lambda: generate(None)), (TypeError, "prompts", lambda: generate(3)),
                (TypeError, "prompt", lambda: generate([None])), (TypeError, "prompt", lambda: generate([1.5, 2.5])),
                (TypeError, "prompt", lambda: generate([["a", 1]])), (TypeError, "prompt", lambda: generate({"text": "x"})),
                (TypeError, "prompt", lambda: generate(np.asarray([0.5, 1.5]))), (TypeError, "sampling_params", lambda: generate("x", {"n": 1})),
                (TypeError, "sampling_params", lambda: generate("x", [None])), (ValueError, "2 items for 1", lambda: generate("x", [GREEDY, GREEDY])),
                (ValueError, "token", lambda: generate([2**31])), (ValueError, "token", lambda: generate([-1])),
                (ValueError, "token", lambda: generate([10**30])), (ValueError, "surrogate", lambda: generate("\udcff")),
                (ValueError, "context", lambda: generate([1] * 256)), (ValueError, "seed", lambda: SamplingParams(seed=2**70)),
                (ValueError, "temperature", lambda: SamplingParams(temperature=float("inf"))), (ValueError, "n is", lambda: SamplingParams(n=10**9)),
                (ValueError, "max_tokens", lambda: SamplingParams(max_tokens=10**18)), (ValueError, "top_k", lambda: SamplingParams(top_k=2**40)),
                (ValueError, "timeout", lambda: SamplingParams(timeout=float("nan"))), (TypeError, "stop", lambda: SamplingParams(stop=b"x")),
                (ValueError, "token of logit_bias", lambda: SamplingParams(logit_bias={2**40: 1})),
                (ValueError, "999", lambda: generate("x", SamplingParams(logit_bias={999: 1}))),
                (ValueError, "999", lambda: generate("x", SamplingParams(allowed_token_ids=[999]))),
                (TypeError, "messages", lambda: llm.chat(3)), (TypeError, "message", lambda: llm.chat([3])),
                (ValueError, "role", lambda: llm.chat([{"content": "x"}])), (ValueError, "JSON", lambda: llm.chat([{"role": "user", "content": {1, 2}}])),
                (ValueError, "threads", lambda: celer.load(tiny.model(), threads=2**40)), (ValueError, "context", lambda: celer.load(tiny.model(), context=2**62)),
                (ValueError, "context", lambda: celer.load(tiny.model(), context=-1)), (ValueError, "kv_memory", lambda: celer.load(tiny.model(), kv_memory="9" * 40)),
                (ValueError, "zero byte", lambda: celer.load("a\0b")), (TypeError, "model", lambda: celer.load(None)),
                (ValueError, "context", lambda: model.perplexity("x" * 99, window=2**40)), (ValueError, "window", lambda: model.perplexity("x" * 99, window=-1)),
                (ValueError, "at least two", lambda: model.score([])), (ValueError, "at least two", lambda: model.score([1])), (TypeError, "text is None", lambda: model.embed(None)),
                (TypeError, "tools", lambda: model.chat("x", tools=5)), (TypeError, "text", lambda: model.tokenizer(5)), (TypeError, "logit_bias", lambda: SamplingParams(logit_bias=5)),
                (ValueError, "empty", lambda: generate([[]])), (ValueError, "empty", lambda: model.generate([])), (ValueError, "empty", lambda: generate({"prompt_token_ids": []})), (ValueError, "gpu_memory", lambda: LLM(tiny.model(), gpu_memory_utilization=-1)),
                (TypeError, "gpu_memory_utilization", lambda: LLM(tiny.model(), gpu_memory_utilization="0.5")),
                (TypeError, "tokens", lambda: model.tokenizer.decode([1.0])), (TypeError, "tokens", lambda: model.tokenizer.decode(None)),
                (TypeError, "text", lambda: model.tokenizer.encode(None)), (ValueError, "token", lambda: model.tokenizer.decode(2**40))]:
            with self.subTest(words=words):
                self.assert_error(kind, words, call)
        self.assertEqual(len(generate("x")[0].outputs[0].token_ids), 12)

    def test_texts_of_every_kind(self):
        """They come back as they went in, and an answer to each is a text of whole characters."""
        texts = ["", " ", "\n", "\0", "a\0b", "é", "e\u0301", "日本語のテキスト", "🦄👩‍👩‍👧‍👦", "\u202e\u200b\ufeff", "𝔘𝔫𝔦", "\U0010ffff", "\r\n\t",
                 "<|endoftext|>", "a" * 150, "مرحبا", "ﷺ"]
        tokenizer = self.model.tokenizer
        for text in texts:
            with self.subTest(text=text):
                ids = tokenizer.encode(text, add_special_tokens=False, parse_special_tokens=False)
                self.assertEqual(tokenizer.decode(ids), text)
                self.model.generate(text, max_tokens=4).text.encode()
        for text, output in zip(texts, self.llm.generate(texts, GREEDY, use_tqdm=False)):
            self.assertEqual((output.prompt, output.finished, len(output.outputs[0].token_ids)), (text, True, 12))

    def test_generators_that_are_left(self):
        """Dropped, kept and closed late, closed twice, iterated on after their end, dropped by an exception."""
        before = {id(one) for one in gc.get_objects() if isinstance(one, celer.Generation)}
        kept = []
        for i in range(60):
            answer = self.model.generate("x", max_tokens=200, ignore_eos=True)
            for _ in range(i % 3 if i % 4 != 2 else 0):  # on a busy machine the whole answer may come at once
                next(answer, None)
            if i % 4 == 0:
                kept.append(answer)
            elif i % 4 == 1:
                answer.close()
                answer.close()
                self.assertEqual(list(answer), [])
            elif i % 4 == 2:
                with self.assertRaises(ZeroDivisionError):
                    for _ in answer:
                        raise ZeroDivisionError
            del answer
        while kept:
            kept.pop().close()
        self.settled(self.model)
        self.assertEqual([one for one in gc.get_objects() if isinstance(one, celer.Generation) and id(one) not in before], [])

    def test_collecting_garbage_meanwhile(self):
        expected = [one.outputs[0].token_ids for one in self.llm.generate([f"p {i}" for i in range(8)], GREEDY, use_tqdm=False)]
        until = threading.Event()

        def collect():
            while not until.is_set():
                gc.collect()
        thread = threading.Thread(target=collect)
        thread.start()
        old = gc.get_threshold()
        gc.set_threshold(1)
        try:
            for _ in range(5):
                found = self.llm.generate([f"p {i}" for i in range(8)], GREEDY, use_tqdm=False)
                self.assertEqual([one.outputs[0].token_ids for one in found], expected)
        finally:
            gc.set_threshold(*old)
            until.set()
            thread.join()

    def test_two_models_at_once(self):
        """Each gives what it gives alone, in threads that share them, while others come and go."""
        other = celer.load(tiny.model("other", 1, 96, 128), **tiny.SETTINGS)
        self.addCleanup(other.close)
        models = [self.model, other]
        say = lambda one, i: str(one.generate(f"prompt {i}", max_tokens=10, temperature=0, ignore_eos=True))  # noqa: E731
        expected = [[say(one, i) for i in range(6)] for one in models]
        self.assertNotEqual(*expected)
        wrong = []

        def work(seed):
            draw = random.Random(seed)
            for _ in range(25):
                which, i = draw.randrange(2), draw.randrange(6)
                if say(models[which], i) != expected[which][i]:
                    wrong.append((which, i))

        def churn():
            for _ in range(10):
                celer.load(tiny.model(), **tiny.SETTINGS).generate("x", max_tokens=100, ignore_eos=True).close()
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)] + [threading.Thread(target=churn)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        self.assertEqual(wrong, [])
        self.settled(self.model)

    def test_a_request_that_fails_leaves_the_engine_to_the_others(self):
        engine = self.llm.llm_engine
        engine.add_request("good", "hello", GREEDY)
        self.assert_error(ValueError, "999", lambda: engine.add_request("bad", [999], GREEDY))
        self.assert_error(ValueError, "in flight already", lambda: engine.add_request("good", "hello", GREEDY))
        last = None
        while engine.has_unfinished_requests():
            for last in engine.step():
                pass
        self.assertTrue(last.finished and len(last.outputs[0].token_ids) == 12)
        self.assertEqual((engine.step(), engine.get_num_unfinished_requests()), ([], 0))

    def test_an_error_while_it_runs_is_told_once(self):
        """A deadline that is over ends a request and no other."""
        outputs = self.llm.generate(["a", "b"], [SamplingParams(max_tokens=230, ignore_eos=True, timeout=0.001), GREEDY], use_tqdm=False)
        self.assertEqual((outputs[0].outputs[0].stop_reason, outputs[0].outputs[0].finish_reason), ("deadline", "abort"))
        self.assertEqual(len(outputs[1].outputs[0].token_ids), 12)

    def test_a_callback_that_raises(self):
        class Bar:
            def __init__(self, **_):
                pass

            def update(self, _):
                raise ZeroDivisionError("in the bar")

            def close(self):
                pass
        with self.assertRaises(ZeroDivisionError):
            self.llm.generate(["x"] * 4, LONG, use_tqdm=Bar)
        stats = self.llm._core.native.stats()
        self.assertEqual((stats["running"], stats["kv_blocks_used"]), (0, 0))


class Arrays(tiny.Case):
    @classmethod
    def setUpClass(cls):
        cls.session = celer.InferenceSession(dense())
        cls.x = RANDOM.standard_normal((4, 16), np.float32)

    def run_one(self, x):
        return self.session.run(None, {"x": x})[0]

    def test_strides_and_layouts(self):
        base = RANDOM.standard_normal((16, 8, 4), np.float32)
        for x in (self.x[::-1], self.x[:, ::-1], np.asfortranarray(self.x), base.T[:, 0, :], np.broadcast_to(self.x[:1], (5, 16)), self.x[:0],
                  np.lib.stride_tricks.sliding_window_view(np.arange(40, dtype=np.float32), 16), self.x[[3, 1]], np.ma.masked_array(self.x).data,
                  np.frombuffer(self.x.tobytes(), np.float32).reshape(4, 16), np.frombuffer(b"\0" + self.x.tobytes(), np.uint8)[1:].view(np.float32).reshape(4, 16)):
            np.testing.assert_allclose(self.run_one(x), np.ascontiguousarray(x) @ WEIGHT, rtol=1e-4, atol=1e-5)

    def test_wrong_elements(self):
        session, x = self.session, self.x
        whole = celer.InferenceSession(identity(TensorProto.INT64))
        small = celer.InferenceSession(identity(TensorProto.UINT8))
        for kind, words, call in [
                (ValueError, "float16", lambda: self.run_one(x.astype(np.float16))), (ValueError, "int64", lambda: self.run_one(x.astype(np.int64))),
                (ValueError, "float32", lambda: self.run_one(x.astype(">f4"))), (ValueError, "<U1", lambda: self.run_one(np.full((4, 16), "a"))),
                (ValueError, "object", lambda: self.run_one(x.astype(object))), (ValueError, "datetime64", lambda: self.run_one(np.zeros((4, 16), "M8[s]"))),
                (ValueError, "[4, 16, 1]", lambda: self.run_one(x[..., None])), (TypeError, "NoneType", lambda: self.run_one(None)),
                (TypeError, "str", lambda: self.run_one("x")), (TypeError, "bytes", lambda: self.run_one(x.tobytes())),
                (TypeError, "dict", lambda: self.run_one({})), (ValueError, "inhomogeneous", lambda: self.run_one([[1, 2], [3]])),
                (ValueError, "float64", lambda: whole.run(None, {"x": [1.5]})), (ValueError, "300", lambda: small.run(None, {"x": [300]})),
                (ValueError, "no input", lambda: session.run(None, {3: x})),
                (ValueError, "no input", lambda: session.run(None, {"x\0": x})), (TypeError, "expected an array", lambda: celer.OrtValue("x")),
                (TypeError, "expected an array", lambda: celer.OrtValue(None)), (TypeError, "providers", lambda: celer.InferenceSession(dense(), providers="CPUExecutionProvider")),
                (ValueError, "providers", lambda: celer.InferenceSession(dense(), providers=[()])), (TypeError, "provider_options", lambda: celer.InferenceSession(dense(), provider_options=5)),
                (TypeError, "name of an output", lambda: session.run([["y"]], {"x": x}))]:
            with self.subTest(words=words):
                self.assert_error(kind, words, call)
        np.testing.assert_array_equal(whole.run(None, {"x": [1, 2]})[0], [1, 2])
        np.testing.assert_array_equal(small.run(None, {"x": [1, 2]})[0], [1, 2])
        self.assertEqual(self.run_one(np.full((4, 16), np.nan, np.float32)).shape, (4, 8))

    def test_dlpack(self):
        """Out and in, twice, after their owner is gone, and a capsule that is spent."""
        value = self.session.run_with_ort_values(None, {"x": self.x})[0]
        first, second = np.from_dlpack(value), np.from_dlpack(value)
        self.assertTrue(np.shares_memory(first, second))
        expected = first.copy()
        del value, first
        gc.collect()
        np.testing.assert_array_equal(second, expected)

        class Once:
            """Gives one capsule, again and again."""

            def __init__(self, array):
                self.array, self.capsule = array, array.__dlpack__()

            def __dlpack__(self, **_):
                return self.capsule

            def __dlpack_device__(self):
                return self.array.__dlpack_device__()
        once = Once(self.x.copy())
        np.testing.assert_allclose(self.run_one(once), self.x @ WEIGHT, rtol=1e-4, atol=1e-5)
        with self.assertRaises((ValueError, TypeError)) as raised:
            self.run_one(once)
        self.assertIn("x", str(raised.exception))
        self.assert_error(TypeError, "PyCapsule", lambda: self.run_one(self.x.__dlpack__()))

        class Elsewhere:
            def __dlpack__(self, **_):
                raise BufferError("it is on another device")

            def __dlpack_device__(self):
                return (2, 0)
        self.assert_error(ValueError, "the input 'x'", lambda: self.run_one(Elsewhere()))

    def test_what_a_run_gives_is_its_own(self):
        y = self.run_one(self.x)
        kept = y.copy()
        self.run_one(-self.x)
        np.testing.assert_array_equal(y, kept)
        y[:] = 0
        np.testing.assert_array_equal(self.run_one(self.x), kept)
        session = celer.InferenceSession(dense())
        y = session.run(None, {"x": self.x})[0]
        del session
        gc.collect()
        np.testing.assert_array_equal(y, kept)

    def test_input_and_output_in_one_memory(self):
        session = celer.InferenceSession(identity(TensorProto.FLOAT))
        memory = np.arange(32, dtype=np.float32)
        binding = session.io_binding()
        binding.bind_cpu_input("x", memory[:24])
        binding.bind_ortvalue_output("y", celer.OrtValue(memory[8:]))
        binding.run()
        np.testing.assert_array_equal(memory, [*range(8), *range(24)])
        read_only = np.zeros(24, np.float32)
        read_only.flags.writeable = False
        self.assert_error(ValueError, "writeable", lambda: binding.bind_ortvalue_output("y", celer.OrtValue(read_only)))

    def test_a_session_in_many_threads_that_collect(self):
        wrong = []

        def work():
            for _ in range(200):
                if not np.allclose(self.run_one(self.x), self.x @ WEIGHT, rtol=1e-4, atol=1e-5):
                    wrong.append(1)
                gc.collect(0)
        threads = [threading.Thread(target=work) for _ in range(4)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        self.assertEqual(wrong, [])


class Pictures(tiny.Case):
    """Beside the command, and beside numpy."""

    @classmethod
    def setUpClass(cls):
        cls.pixels = RANDOM.integers(0, 256, (40, 30, 3), dtype=np.uint8)
        graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, "h", "w"])],
                                  [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3, "h", "w"])])
        cls.net = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
        cls.session = celer.InferenceSession(cls.net)

    def seen(self, picture, **settings):
        return self.session.run(None, {"x": celer.Picture(picture, **settings)})[0]

    def test_pixels(self):
        mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
        expected = ((self.pixels / 255.0 - mean) / std).transpose(2, 0, 1)[None].astype(np.float32)
        np.testing.assert_allclose(self.seen(self.pixels, mean=mean, std=std), expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(self.seen(self.pixels[:, ::-1], scale=1, channels="bgr"), self.pixels[:, ::-1, ::-1].transpose(2, 0, 1)[None])
        self.assertEqual(self.seen(self.pixels, size=(20, 24), fit="letterbox").shape, (1, 3, 20, 24))

    def test_files(self):
        """As the command reads and fits it."""
        path, net, out = (f"{tiny.FOLDER.name}/{name}" for name in ("picture.ppm", "picture.onnx", "out.npz"))
        with open(path, "wb") as file:
            file.write(b"P6 30 40 255\n" + self.pixels.tobytes())
        with open(net, "wb") as file:
            file.write(self.net)
        for fit in ("stretch", "crop", "letterbox"):
            tiny.celer_command("graph", "run", net, "--input", f"x={path}", "--size", "22,26", "--fit", fit, "--mean", "0.5", "--output", out, check=True)
            np.testing.assert_array_equal(self.seen(path, size=(22, 26), fit=fit, mean=0.5), np.load(out)["y"])
        np.testing.assert_array_equal(self.seen(path), self.seen(self.pixels))

    def test_pillow(self):
        try:
            from PIL import Image
        except ImportError:
            self.skipTest("Pillow is not installed")
        np.testing.assert_array_equal(self.seen(Image.fromarray(self.pixels)), self.seen(self.pixels))
        self.assertEqual(self.seen(Image.fromarray(self.pixels).convert("L")).shape, (1, 3, 40, 30))

    def test_bad_arguments(self):
        dense_session = celer.InferenceSession(dense())
        for kind, words, call in [
                (FileNotFoundError, "/no/such.png", lambda: self.seen("/no/such.png")), (ValueError, "float32", lambda: celer.Picture(np.zeros((2, 2, 3), np.float32))),
                (ValueError, "[2, 2]", lambda: celer.Picture(np.zeros((2, 2), np.uint8))), (TypeError, "expected an array", lambda: celer.Picture(None)),
                (ValueError, "fit", lambda: celer.Picture(self.pixels, fit="squeeze")), (ValueError, "size", lambda: celer.Picture(self.pixels, size=(0, 5))),
                (ValueError, "mean", lambda: self.seen(self.pixels, mean=[1, 2])), (ValueError, "std", lambda: self.seen(self.pixels, std=0)),
                (TypeError, "size", lambda: celer.Picture(self.pixels, size=5)), (ValueError, "(height, width)", lambda: celer.Picture(self.pixels, size=(1, 2, 3))),
                (TypeError, "scale", lambda: celer.Picture(self.pixels, scale="1")), (TypeError, "did you mean 'mean'", lambda: celer.Picture(self.pixels, meen=1)),
                (ValueError, "0 x 3", lambda: self.seen(np.zeros((0, 3, 3), np.uint8))), (ValueError, "the input 'x'", lambda: dense_session.run(None, {"x": celer.Picture(self.pixels)}))]:
            with self.subTest(words=words):
                self.assert_error(kind, words, call)


if __name__ == "__main__":
    unittest.main(verbosity=2)
