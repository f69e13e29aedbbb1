"""AsyncLLM, limits, quantize, serve, and what types and documents say."""
import asyncio
import gc
import json
import os
import pathlib
import re
import threading
import unittest
import urllib.request

import tiny

import celer
from celer import AsyncLLM, BeamSearchParams, PoolingParams, RequestOutputKind, SamplingParams


class Async(unittest.IsolatedAsyncioTestCase):
    @classmethod
    def setUpClass(cls):
        cls.llm = AsyncLLM(tiny.model(), max_model_len=256, threads=1, kv_cache_memory_bytes=8 << 20, chat_template=tiny.TEMPLATE)
        cls.addClassCleanup(cls.llm.shutdown)

    async def last(self, prompt, request_id, **params):
        output = None
        async for output in self.llm.generate(prompt, SamplingParams(temperature=0, ignore_eos=True, **params), request_id):
            pass
        return output

    async def test_many_together(self):
        outputs = await asyncio.gather(*(self.last(f"prompt {i}", str(i), max_tokens=10) for i in range(20)))
        self.assertEqual([one.request_id for one in outputs], [str(i) for i in range(20)])
        alone = await self.last("prompt 3", "again", max_tokens=10)
        self.assertEqual(alone.outputs[0].token_ids, outputs[3].outputs[0].token_ids)

    async def test_kinds_of_output(self):
        whole = await self.last("hello", "0", max_tokens=12)
        texts, ids = [], []
        params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=12, output_kind=RequestOutputKind.DELTA)
        async for output in self.llm.generate("hello", params, "1"):
            texts.append(output.outputs[0].text)
            ids += output.outputs[0].token_ids
        self.assertEqual(("".join(texts), ids), (whole.outputs[0].text, whole.outputs[0].token_ids))
        params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=12, output_kind=RequestOutputKind.FINAL_ONLY)
        self.assertEqual(len([output async for output in self.llm.generate("hello", params, "2")]), 1)

    async def test_chat(self):
        async for output in self.llm.chat("hello", SamplingParams(max_tokens=3, temperature=0), "c"):
            pass
        self.assertTrue(output.finished)

    async def test_embeddings_and_beams(self):
        (one,) = [output async for output in self.llm.encode("hello", None, "e")]
        (short,) = [output async for output in self.llm.encode("hello", PoolingParams(dimensions=16), "e")]
        self.assertEqual((one.request_id, one.outputs.hidden_size, short.outputs.hidden_size), ("e", 64, 16))
        self.assertAlmostEqual(sum(x * x for x in one.outputs.embedding), 1, places=5)
        (found,) = [output async for output in self.llm.beam_search("hello", "b", BeamSearchParams(beam_width=3, max_tokens=5, ignore_eos=True))]
        sums = [beam.cum_logprob for beam in found.sequences]
        self.assertEqual((len(sums), sums), (3, sorted(sums, reverse=True)))
        with self.assertRaisesRegex(TypeError, "PoolingParams"):
            await anext(self.llm.encode("hello", {"dimensions": 3}, "e"))
        with self.assertRaisesRegex(ValueError, "600"):
            await anext(self.llm.encode([600], None, "e"))

    async def settled(self):
        for _ in range(500):
            stats = self.llm._core.native.stats()
            if stats["requests"] == stats["finished"] and stats["kv_blocks_used"] == 0:
                return stats
            await asyncio.sleep(0.01)
        return stats

    async def test_cancelling_frees_blocks(self):
        async def use(i):
            async for _ in self.llm.generate("x", SamplingParams(max_tokens=250, ignore_eos=True), f"cancelled {i}"):
                pass
        tasks = [asyncio.create_task(use(i)) for i in range(4)]
        await asyncio.sleep(0.02)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        stats = await self.settled()
        self.assertEqual((stats["running"], stats["kv_blocks_used"]), (0, 0))
        self.assertEqual(self.llm.get_num_unfinished_requests(), 0)
        async for _ in self.llm.generate("x", SamplingParams(max_tokens=250, ignore_eos=True), "left"):
            break
        gc.collect()
        stats = await self.settled()
        self.assertEqual(stats["kv_blocks_used"], 0)

    async def test_engines_come_and_go(self):
        """Each has a thread of Python's and those of the library; left alone with a request in flight, shut down, or neither."""
        before = threading.active_count(), len(os.listdir("/proc/self/task"))
        for i in range(30):
            llm = AsyncLLM(tiny.model(), max_model_len=256, threads=1, kv_cache_memory_bytes=8 << 20)
            async for _ in llm.generate("x", SamplingParams(max_tokens=200 if i % 3 == 0 else 2, ignore_eos=True), "0"):
                if i % 3 == 0:
                    break
            if i % 3 == 1:
                llm.shutdown()
            del llm
        gc.collect()
        await asyncio.sleep(0)
        self.assertEqual((threading.active_count(), len(os.listdir("/proc/self/task"))), before)

    async def test_abort(self):
        output = None
        async for output in self.llm.generate("x", SamplingParams(max_tokens=250, ignore_eos=True), "aborted"):
            await self.llm.abort("aborted")
        self.assertIn(output.outputs[0].finish_reason, ("abort", "length"))

    async def test_errors(self):
        with self.assertRaisesRegex(ValueError, "600"):
            await self.last([600], "bad")
        with self.assertRaisesRegex(TypeError, "SamplingParams"):
            async for _ in self.llm.generate("x", {"temperature": 1}, "bad"):
                pass
        running = self.llm.generate("x", SamplingParams(max_tokens=200, ignore_eos=True), "twice")
        await anext(running)
        with self.assertRaisesRegex(ValueError, "in flight already"):
            await self.last("x", "twice")
        await running.aclose()
        await self.last("x", "twice", max_tokens=2)

    async def test_shut_down(self):
        llm = AsyncLLM(tiny.model(), max_model_len=256, threads=1, kv_cache_memory_bytes=8 << 20)
        running = llm.generate("x", SamplingParams(max_tokens=250, ignore_eos=True), "a")
        await anext(running)
        llm.shutdown()
        llm.shutdown()
        self.assertTrue(llm.is_stopped)
        with self.assertRaisesRegex(RuntimeError, "shut down"):
            await anext(llm.generate("x", SamplingParams(), "b"))
        with self.assertRaisesRegex(RuntimeError, "shut down"):
            async for _ in running:
                pass


class Limits(tiny.Case):
    def test_as_the_command(self):
        mine = celer.limits("llama-3.1-8b", "rtx4090", prompt=512, context=[1024, 4096])
        said = json.loads(tiny.celer_command("limits", "--model", "llama-3.1-8b", "--machine", "rtx4090", "--json", check=True).stdout)
        self.assertEqual(mine.active_parameters, said["params"]["active"])
        self.assertEqual(mine.kv_capacity_tokens, said["kv"]["capacity_tokens"]["w16kv16"])
        steps = {step["context"]: step for step in said["decode"]["w16kv16"]["steps"]}
        for one in mine.decode:
            if one["context"] in steps:
                self.assertAlmostEqual(one["tokens_per_second"] / steps[one["context"]]["tokens_per_s"], 1, places=6)

    def test_what_a_notebook_shows(self):
        mine = celer.limits("llama-3.1-8b", "rtx4090", weight_bits=4.5, batch=4)
        for text in (repr(mine), mine._repr_html_(), mine._repr_svg_()):
            self.assertIn("1024", text)
        self.assertIn("<table>", mine._repr_html_())
        self.assertGreater(mine.tokens_per_second, 4 * 50)

    def test_bad_arguments(self):
        for kind, words, call in [(FileNotFoundError, "llama-3.1-8b", lambda: celer.limits("llama-3.1-8", "rtx4090")),
                                  (FileNotFoundError, "rtx4090", lambda: celer.limits("llama-3.1-8b", "rtx4091")),
                                  (ValueError, "weight_bits", lambda: celer.limits("llama-3.1-8b", "rtx4090", weight_bits=0)),
                                  (TypeError, "weight_bits", lambda: celer.limits("llama-3.1-8b", "rtx4090", weight_bits="4")),
                                  (ValueError, "kv_bits", lambda: celer.limits("llama-3.1-8b", "rtx4090", kv_bits=float("nan"))),
                                  (ValueError, "prompt", lambda: celer.limits("llama-3.1-8b", "rtx4090", prompt=-1)),
                                  (ValueError, "context", lambda: celer.limits("llama-3.1-8b", "rtx4090", context=[2**70])),
                                  (TypeError, "machine", lambda: celer.limits("llama-3.1-8b", 4090)),
                                  (ValueError, "batch", lambda: celer.limits("llama-3.1-8b", "rtx4090", batch=0)),
                                  (ValueError, "1 to", lambda: celer.limits("llama-3.1-8b", "rtx4090", batch=10**30)),
                                  (TypeError, "weight_bits", lambda: celer.limits("llama-3.1-8b", "rtx4090", weight_bit=4)),
                                  (TypeError, "context", lambda: celer.limits("llama-3.1-8b", "rtx4090", context=[]))]:
            with self.subTest(words=words):
                self.assert_error(kind, words, call)


class Messages(tiny.Case):
    def test_warnings_go_to_a_logger(self):
        """And not to stderr, which is the program's."""
        odd = pathlib.Path(tiny.FOLDER.name) / "odd.gguf"
        odd.write_bytes(pathlib.Path(tiny.model()).read_bytes().replace(b"gpt-2", b"zpt-2"))
        with self.assertLogs("celer", "WARNING") as said:
            celer.load(odd, **tiny.SETTINGS).close()
        self.assertIn("pre-tokenizer 'zpt-2'", said.output[0])


class Commands(tiny.Case):
    def test_quantize(self):
        out = os.path.join(tiny.FOLDER.name, "q4.gguf")
        source = os.path.join(tiny.FOLDER.name, "f16.gguf")
        tiny.celer_command("synth", "llama-3.1-8b", "--weights", "f16", "-o", source, "--layers", 2, "--hidden", 64, "--intermediate", 96,
                           "--vocab", 600, "--heads", 4, "--kv-heads", 2, "--head-dim", 32, check=True)
        said = celer.quantize(source, out, weights="q4_0", progress=False)
        self.assertIn("bits per weight", said)
        self.assertLess(os.path.getsize(out), os.path.getsize(source) / 2)
        self.assertGreater(len(celer.load(out, **tiny.SETTINGS).generate("x", max_tokens=3, ignore_eos=True).text), 0)
        self.assert_error(ValueError, "q4_0", lambda: celer.quantize(source, out + "2.gguf", weights="q4_00", progress=False))
        self.assert_error(ValueError, "no such file", lambda: celer.quantize("/no/such.gguf", out, progress=False))
        self.assert_error(ValueError, "--help: no such file", lambda: celer.quantize("--help", out, progress=False))
        self.assert_error(TypeError, "model is None", lambda: celer.quantize(None, out, progress=False))
        with self.assertRaisesRegex(ValueError, "^/no/such/q4.gguf"):  # and not what it warned of before
            celer.quantize(tiny.model(), "/no/such/q4.gguf", progress=False)

    def test_serve(self):
        with celer.serve(tiny.model(), context=256, threads=1, kv_memory="8MiB", chat_template=str(tiny.TEMPLATE)) as server:
            request = urllib.request.Request(server.base_url + "/completions", json.dumps(
                {"prompt": "hello", "max_tokens": 4, "temperature": 0, "ignore_eos": True}).encode(), {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=60) as answer:
                text = json.load(answer)["choices"][0]["text"]
            self.assertTrue(text)
            process = server._process
        self.assertIsNotNone(process.poll())
        self.assert_error(RuntimeError, "no such file", lambda: celer.serve("/no/such.gguf"))
        self.assert_error(RuntimeError, "--no-such", lambda: celer.serve(tiny.model(), no_such=3))
        self.assert_error(RuntimeError, "--help: no such file", lambda: celer.serve("--help"))


class Surface(tiny.Case):
    def test_every_name_exists_and_is_documented(self):
        for name in celer.__all__:
            if name == "compile" and not self._has_torch():
                continue
            value = getattr(celer, name)
            if callable(value):
                self.assertTrue(value.__doc__ and len(value.__doc__) > 10, name)
        self.assertTrue(set(celer.__all__) <= set(dir(celer)))
        self.assert_error(AttributeError, "no attribute", lambda: celer.nothing)

    @staticmethod
    def _has_torch():
        try:
            import torch  # noqa: F401
        except ImportError:
            return False
        return True

    def test_the_document_names_what_exists(self):
        text = (tiny.ROOT / "docs/python.md").read_text(encoding="utf-8")
        for name in set(re.findall(r"celer\.([A-Za-z_]+)", text)) - {"torch"}:
            self.assertIn(name, dir(celer), name)

    def test_types_are_marked(self):
        folder = pathlib.Path(celer.__file__).parent
        self.assertTrue((folder / "py.typed").exists() and (folder / "_celer.pyi").exists())


if __name__ == "__main__":
    unittest.main(verbosity=2)
