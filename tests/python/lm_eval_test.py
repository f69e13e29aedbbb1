"""EleutherAI's lm-evaluation-harness through celer.lm_eval, on a small task of its own: no dataset is fetched."""
import json
import math
import os
import sys
import tempfile
import unittest

import tiny

try:
    import lm_eval
    from lm_eval.api.instance import Instance
    from lm_eval.tasks import TaskManager
except ImportError:
    print("skipped: lm_eval is not installed")
    sys.exit(77)

import celer
from celer.lm_eval import CelerLM

ROWS = [{"question": "one plus one is", "choices": ["two", "three"], "answer": 0}, {"question": "the sky is", "choices": ["red", "blue"], "answer": 1},
        {"question": "cats are", "choices": ["plants", "animals"], "answer": 1}]
TASKS = {
    "tiny_choice": """task: tiny_choice
dataset_path: json
dataset_kwargs: {data_files: {test: ROWS}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: choices
doc_to_target: answer
metric_list: [{metric: acc}, {metric: acc_norm}]
""",
    "tiny_text": """task: tiny_text
dataset_path: json
dataset_kwargs: {data_files: {test: ROWS}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{choices[answer]}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 8, do_sample: false}
metric_list: [{metric: exact_match}]
""",
    "tiny_perplexity": """task: tiny_perplexity
dataset_path: json
dataset_kwargs: {data_files: {test: ROWS}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{question}}"
metric_list: [{metric: word_perplexity}, {metric: bits_per_byte}]
"""}


class Harness(tiny.Case):
    @classmethod
    def setUpClass(cls):
        cls.lm = CelerLM(tiny.model(), context=256, threads=1, kv_memory="8MiB")
        cls.addClassCleanup(cls.lm.model.close)

    def test_tasks(self):
        with tempfile.TemporaryDirectory() as folder:
            rows = os.path.join(folder, "rows.jsonl")
            with open(rows, "w", encoding="utf-8") as file:
                file.write("".join(json.dumps(row) + "\n" for row in ROWS))
            for name, text in TASKS.items():
                with open(os.path.join(folder, name + ".yaml"), "w", encoding="utf-8") as file:
                    file.write(text.replace("ROWS", rows))
            os.environ["HF_DATASETS_CACHE"] = os.path.join(folder, "cache")
            found = lm_eval.simple_evaluate(self.lm, tasks=list(TASKS), task_manager=TaskManager(include_path=folder, include_defaults=False),
                                            bootstrap_iters=0)["results"]
        expected = 0
        for row in ROWS:
            score = [self.lm.model.score(self.lm.model.tokenizer.encode(f"{row['question']} {choice}"),
                                         len(self.lm.model.tokenizer.encode(row["question"]))).sum() for choice in row["choices"]]
            expected += int(max(range(2), key=score.__getitem__) == row["answer"])
        self.assertAlmostEqual(found["tiny_choice"]["acc,none"], expected / len(ROWS))
        self.assertIn("exact_match,none", found["tiny_text"])
        self.assertTrue(math.isfinite(found["tiny_perplexity"]["word_perplexity,none"]))

    def test_likelihoods(self):
        ask = lambda *args: Instance("loglikelihood", {}, args, 0)  # noqa: E731
        (whole, _), (first, _), (rest, _) = self.lm.loglikelihood([ask("a b", " c d"), ask("a b", " c"), ask("a b c", " d")])
        self.assertAlmostEqual(whole, first + rest, places=3)
        ids = self.lm.model.tokenizer.encode("a b")
        best = int(self.lm.model.logits(ids)[-1].argmax())
        self.assertTrue(self.lm._score(ids, [best])[1])
        self.assertFalse(self.lm._score(ids, [best ^ 1])[1])

    def test_texts(self):
        made = self.lm.generate_until([Instance("generate_until", {}, ("hello", {"until": [], "max_gen_toks": 6}), 0)] * 3)
        self.assertEqual(made, [celer.load(tiny.model(), **tiny.SETTINGS).generate("hello", max_tokens=6, temperature=0).text] * 3)


if __name__ == "__main__":
    unittest.main(verbosity=2)
