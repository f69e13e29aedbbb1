"""LLM and celer.load on a GPU, where there is one: python3 cuda_test.py with a module that was built with CUDA."""
import gc
import subprocess
import sys
import threading
import unittest

import tiny

import celer
from celer import LLM, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)


def used():
    """MiB of the first GPU, by whomever."""
    said = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", "0"], capture_output=True, text=True, check=True)
    return int(said.stdout)


def model():
    return tiny.model("gpu", 4, 1024, 2048, heads=8, kv_heads=4, head_dim=128)


def open_llm(**settings):
    return LLM(model(), device="cuda", max_model_len=1024, **settings)


class Gpu(tiny.Case):
    def test_as_on_the_cpu(self):
        """The first tokens are those of the CPU; sums in another order may part them later."""
        prompts = [f"prompt {i} " * (i % 7 + 1) for i in range(64)]
        llm = open_llm()
        self.assertIn("cuda", llm._core.info["device"])
        ours = llm.generate(prompts, GREEDY, use_tqdm=False)
        self.assertEqual({len(one.outputs[0].token_ids) for one in ours}, {24})
        cpu = LLM(model(), device="cpu", max_model_len=1024).generate(prompts, GREEDY, use_tqdm=False)
        same = sum(a.outputs[0].token_ids[0] == b.outputs[0].token_ids[0] for a, b in zip(ours, cpu))
        print(f"the first token is the CPU's in {same} of {len(prompts)}")
        self.assertGreaterEqual(same, 60)
        llm.close()

    def test_logits_and_embeddings(self):
        ids = list(range(40, 90))
        with celer.load(model(), device="cuda", context=512) as gpu, celer.load(model(), device="cpu", context=512) as cpu:
            ours, theirs = gpu.logits(ids), cpu.logits(ids)
            self.assertLess(abs(ours - theirs).max() / abs(theirs).max(), 0.05)
            self.assertGreater(float(gpu.embed("hello") @ cpu.embed("hello")), 0.99)

    def test_closing_gives_memory_back(self):
        open_llm(kv_cache_memory_bytes=1 << 30).close()  # CUDA's own
        before = used()
        for _ in range(3):
            llm = open_llm(kv_cache_memory_bytes=8 << 30)
            llm.generate("x", GREEDY, use_tqdm=False)
            self.assertGreater(used(), before + 4000)
            del llm
            gc.collect()
            self.assertLess(used(), before + 200)

    def test_share_of_memory(self):
        llm = open_llm(gpu_memory_utilization=0.25, max_num_seqs=4096)
        self.assertLess(used(), 0.4 * 144000)
        llm.close()

    def test_two_models_and_threads(self):
        models = [open_llm(kv_cache_memory_bytes=1 << 30) for _ in range(2)]
        expected = models[0].generate("hello", GREEDY, use_tqdm=False)[0].outputs[0].token_ids
        wrong = []

        def work(llm):
            for _ in range(10):
                if llm.generate("hello", GREEDY, use_tqdm=False)[0].outputs[0].token_ids[0] != expected[0]:
                    wrong.append(1)
        threads = [threading.Thread(target=work, args=(llm,)) for llm in models for _ in range(3)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        self.assertEqual(wrong, [])
        for llm in models:
            llm.close()


if __name__ == "__main__":
    try:
        open_llm().close()
    except ValueError as error:
        print(f"skipped: {error}")
        sys.exit(77)
    unittest.main(verbosity=2)
