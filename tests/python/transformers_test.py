"""Models and tokenizers that are objects of Hugging Face's transformers, and prompts out of its datasets."""
import os
import sys
import tempfile
import unittest
import unittest.mock

import numpy as np
import tiny

try:
    import tokenizers
    import transformers
except ImportError as error:
    print(f"skipped: {error.name} is not installed")
    sys.exit(77)
try:
    import torch
except ImportError:
    torch = None
try:
    import datasets
except ImportError:
    datasets = None

import celer
from celer import LLM, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


def make_tokenizer(size=0):
    """Of bytes, with two control tokens and as many unused ones as are missing."""
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    names = [*letters, "<s>", "</s>"]
    vocab = {name: i for i, name in enumerate(names + [f"<unused{i}>" for i in range(size - len(names))])}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[]))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    found = transformers.PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>")
    found.chat_template = "{% for m in messages %}<s>{{ m['role'] }}: {{ m['content'] }}</s>{% endfor %}<s>"
    return found


class Tokenizers(tiny.Case):
    def test_an_object(self):
        tokenizer = make_tokenizer(600)
        with celer.load(tiny.model(), tokenizer=tokenizer, **tiny.SETTINGS) as model:
            for text in ("hello", "  two  words", "naïve ☃"):
                self.assertEqual(model.tokenizer.encode(text, add_special_tokens=False), tokenizer.encode(text, add_special_tokens=False))
            messages = [{"role": "user", "content": "hi"}]
            self.assertEqual(model.tokenizer.apply_chat_template(messages, add_generation_prompt=False),
                             tokenizer.apply_chat_template(messages, return_dict=False))
            self.assertTrue(model.generate("hello", max_tokens=3, ignore_eos=True).text is not None)
        llm = LLM(tiny.model(), tokenizer=tokenizer, max_model_len=256, threads=1, kv_cache_memory_bytes=8 << 20)
        self.assertEqual(llm.generate("ab", GREEDY, use_tqdm=False)[0].prompt_token_ids, tokenizer.encode("ab"))

    def test_bad_arguments(self):
        self.assert_error(TypeError, "tokenizer", lambda: celer.load(tiny.model(), tokenizer=3))
        self.assert_error(TypeError, "expected a path", lambda: celer.load(3))
        self.assert_error(TypeError, "celer.load()", lambda: celer.from_transformers("smollm2"))


@unittest.skipIf(datasets is None, "the package datasets is not installed")
class Datasets(tiny.Case):
    def test_prompts(self):
        rows = datasets.Dataset.from_dict({"prompt": ["one", "two", "three"], "label": [0, 1, 2]})
        llm = LLM(tiny.model(), max_model_len=256, threads=1, kv_cache_memory_bytes=8 << 20)
        expected = [one.outputs[0].token_ids for one in llm.generate(list(rows["prompt"]), GREEDY, use_tqdm=False)]
        for prompts in (rows, rows["prompt"], rows.select_columns(["prompt"]), rows.to_iterable_dataset()):
            outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
            self.assertEqual([one.prompt for one in outputs], list(rows["prompt"]))
            self.assertEqual([one.outputs[0].token_ids for one in outputs], expected)


@unittest.skipIf(torch is None, "PyTorch is not installed")
class Models(tiny.Case):
    SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
             "max_position_embeddings": 256}

    @classmethod
    def setUpClass(cls):
        cls.tokenizer = make_tokenizer()

    def make(self, kind, **settings):
        torch.manual_seed(0)
        config = getattr(transformers, kind + "Config")(vocab_size=len(self.tokenizer), bos_token_id=self.tokenizer.bos_token_id,
                                                        eos_token_id=self.tokenizer.eos_token_id, **self.SIZES, **settings)
        return getattr(transformers, kind + "ForCausalLM")(config).eval()

    def load(self, model, **settings):
        return celer.from_transformers(model, self.tokenizer, **{**tiny.SETTINGS, "kv": "f32", **settings})

    def test_the_same_numbers(self):
        ids = self.tokenizer.encode("hello there")
        for kind, settings in (("Llama", {}), ("Llama", {"tie_word_embeddings": True}), ("Qwen3", {"head_dim": 16}),
                               ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2})):
            with self.subTest(kind=kind, **settings):
                model = self.make(kind, **settings)
                with self.load(model) as mine, torch.no_grad():
                    theirs = model(torch.tensor([ids])).logits[0].numpy()
                    np.testing.assert_allclose(mine.logits(ids), theirs, atol=1e-4 * abs(theirs).max())
                    expected = model.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False)[0, len(ids):].tolist()
                    answer = mine.generate(ids, max_tokens=12, temperature=0)
                    str(answer)
                    self.assertEqual(answer.token_ids, expected[:len(answer.token_ids)])
                    self.assertIn(type(model).__name__, repr(mine))

    def test_other_formats(self):
        ids = self.tokenizer.encode("hello there")
        model = self.make("Llama").to(torch.bfloat16)
        with torch.no_grad():
            theirs = model(torch.tensor([ids])).logits[0].float().numpy()
        for weights, bound in (("stored", 0.02), ("int8", 0.05)):
            with self.load(model, weights=weights) as mine:
                np.testing.assert_allclose(mine.logits(ids), theirs, atol=bound * abs(theirs).max())

    def test_in_the_shape_of_vllm(self):
        llm = LLM(self.make("Llama"), tokenizer=self.tokenizer, max_model_len=128, threads=1, kv_cache_memory_bytes=8 << 20)
        output = llm.chat([{"role": "user", "content": "hi"}], GREEDY, use_tqdm=False)[0]
        self.assertEqual(len(output.outputs[0].token_ids), 6)

    def test_later_changes_do_not_matter(self):
        model = self.make("Llama")
        with self.load(model) as mine:
            before = mine.logits([1, 2, 3])
            with torch.no_grad():
                for one in model.parameters():
                    one.zero_()
            np.testing.assert_array_equal(mine.logits([1, 2, 3]), before)

    def test_nothing_is_left_behind(self):
        """No files and no descriptors."""
        model = self.make("Llama")
        with tempfile.TemporaryDirectory() as folder, unittest.mock.patch("tempfile.tempdir", folder):
            self.load(model).close()
            before = len(os.listdir("/proc/self/fd"))
            for _ in range(20):
                self.load(model).close()
            self.assertLessEqual(len(os.listdir("/proc/self/fd")), before)
            self.assertEqual(os.listdir(folder), [])

    def test_bad_arguments(self):
        model = self.make("Llama")
        self.assert_error(TypeError, "weights", lambda: self.load(model, weight="int8"))
        self.assert_error(TypeError, "needs a tokenizer", lambda: celer.from_transformers(model))
        self.assert_error(ValueError, "int3", lambda: self.load(model, weights="int3"))
        with torch.device("meta"):
            empty = transformers.LlamaForCausalLM(model.config)
        self.assert_error(ValueError, "meta", lambda: self.load(empty))
        model.peft_config = {}
        self.assert_error(NotImplementedError, "merge_and_unload", lambda: self.load(model))


if __name__ == "__main__":
    unittest.main(verbosity=2)
