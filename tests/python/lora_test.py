"""LoRA adapters in LLM, LLMEngine and AsyncLLM, by vLLM's LoRARequest."""
import asyncio
import pathlib
import sys
import unittest

import tiny

sys.path.insert(0, str(tiny.ROOT / "tests/server"))
from adapters import make_adapter  # noqa: E402

from celer import LLM, AsyncLLM, BeamSearchParams, LoRARequest, SamplingParams  # noqa: E402

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
SETTINGS = {"max_model_len": 256, "threads": 1, "kv_cache_memory_bytes": 8 << 20, "chat_template": tiny.TEMPLATE, "device": "cpu",
            "enable_lora": True}


def request(name, number, **more):
    path = pathlib.Path(tiny.FOLDER.name) / name
    return LoRARequest(name, number, str(make_adapter(path, number)), **more)


class Lora(tiny.Case):
    @classmethod
    def setUpClass(cls):
        cls.llm = LLM(tiny.model(), **SETTINGS)
        cls.addClassCleanup(cls.llm.close)
        cls.adapters = [request(name, number) for number, name in enumerate("abcde", 1)]

    def say(self, prompts, lora=None, params=GREEDY):
        return [one.outputs[0].text for one in self.llm.generate(prompts, params, use_tqdm=False, lora_request=lora)]

    def test_eight_prompts_with_five_adapters(self):
        a, b, c, d, e = self.adapters
        prompts = [f"{i} once upon a time" for i in range(8)]
        loras = [a, None, b, c, a, d, None, e]
        together = self.say(prompts, loras)
        self.assertEqual(together, [self.say(one, lora)[0] for one, lora in zip(prompts, loras)])
        plain = self.say(prompts)
        self.assertEqual([one == other for one, other in zip(together, plain)], [lora is None for lora in loras])

    def test_chat_and_beams(self):
        a = self.adapters[0]
        ask = [{"role": "user", "content": "hello"}]
        with_a = self.llm.chat(ask, GREEDY, use_tqdm=False, lora_request=a)[0]
        self.assertNotEqual(with_a.outputs[0].text, self.llm.chat(ask, GREEDY, use_tqdm=False)[0].outputs[0].text)
        self.assertEqual(with_a.lora_request, a)
        self.assertEqual(with_a.outputs[0].lora_request, a)
        beams = BeamSearchParams(beam_width=3, max_tokens=6)
        self.assertNotEqual(self.llm.beam_search(["hello"], beams, a)[0].sequences[0].tokens,
                            self.llm.beam_search(["hello"], beams)[0].sequences[0].tokens)

    def test_an_engine_that_is_stepped(self):
        a, b = self.adapters[:2]
        engine = self.llm.llm_engine
        engine.remove_lora(2)
        self.assertTrue(engine.add_lora(b))
        self.assertFalse(engine.add_lora(b))
        engine.add_request("with", "hello", GREEDY, lora_request=a)
        engine.add_request("without", "hello", GREEDY)
        self.assertIn(1, engine.list_loras())
        texts = {}
        while engine.has_unfinished_requests():
            for output in engine.step():
                texts[output.request_id] = output.outputs[0].text
        self.assertEqual([texts["with"], texts["without"]], [self.say("hello", a)[0], self.say("hello")[0]])
        self.assertTrue(engine.remove_lora(2))
        self.assertFalse(engine.remove_lora(2))
        self.assertNotIn(2, engine.list_loras())

    def test_one_in_memory_at_a_time(self):
        with_all = [self.say("hello", lora)[0] for lora in self.adapters]
        llm = LLM(tiny.model(), **SETTINGS, max_cpu_loras=1)
        self.addCleanup(llm.close)
        one_by_one = [llm.generate("hello", GREEDY, use_tqdm=False, lora_request=lora)[0].outputs[0].text for lora in self.adapters]
        self.assertEqual(one_by_one, with_all)
        self.assertEqual(llm.llm_engine.list_loras(), {5})

    def test_asynchronously(self):
        llm = AsyncLLM(tiny.model(), **SETTINGS)
        self.addCleanup(llm.shutdown)

        async def one(number, lora):
            async for output in llm.generate("hello", GREEDY, str(number), lora_request=lora):
                last = output
            return last.outputs[0].text

        async def all_of_them():
            return await asyncio.gather(*[one(number, lora) for number, lora in enumerate([*self.adapters, None])])

        self.assertEqual(asyncio.run(all_of_them()), [self.say("hello", lora)[0] for lora in [*self.adapters, None]])

    def test_what_is_wrong(self):
        say = lambda lora: self.llm.generate("x", GREEDY, use_tqdm=False, lora_request=lora)  # noqa: E731
        plain = LLM(tiny.model(), **SETTINGS | {"enable_lora": False})
        self.addCleanup(plain.close)
        narrow = LLM(tiny.model(), **SETTINGS, max_lora_rank=2)
        self.addCleanup(narrow.close)
        a = self.adapters[0]
        say(a)
        for kind, words, call in [
            (ValueError, "lora_int_id", lambda: LoRARequest("x", 0, "y")),
            (ValueError, "lora_path", lambda: LoRARequest("x", 1)),
            (TypeError, "LoRARequest", lambda: say("a")),
            (ValueError, "2 items for 1", lambda: say([a, a])),
            (ValueError, "another name", lambda: say(LoRARequest("a", 1, "elsewhere"))),
            (ValueError, "enable_lora", lambda: plain.generate("x", GREEDY, use_tqdm=False, lora_request=a)),
            (ValueError, "rank 4", lambda: narrow.generate("x", GREEDY, use_tqdm=False, lora_request=a)),
            (FileNotFoundError, "nowhere", lambda: say(LoRARequest("n", 9, "/nowhere"))),
        ]:
            with self.subTest(words):
                self.assert_error(kind, words, call)
        self.assertTrue(say(None))


if __name__ == "__main__":
    unittest.main(verbosity=2)
