#!/usr/bin/env python3
"""celer limits as scripts and people meet it: the JSON contract, the files it writes, its errors and exit codes.

usage: limits_cli_test.py PATH_TO_CELER        (Python's standard library only)
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest
import xml.dom.minidom

from written_page import WrittenPage

CELER = None
SETUPS = ["w16kv16", "w8kv16", "w4kv16", "w6kv16", "w4kv8"]


def run(*args):
    done = subprocess.run([CELER, "limits", *args], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


def ask(*args):
    code, out, err = run(*args, "--json")
    assert code == 0, (args, code, err)
    return json.loads(out)


class Contract(unittest.TestCase):
    def test_every_key_is_there(self):
        answer = ask("--model", "qwen1.5-7b", "--machine", "rtx4090")
        self.assertEqual(answer["units"], "si")
        for key in ["layers", "lm_head", "active", "total"]:
            self.assertIsInstance(answer["params"][key], int)
        self.assertIsInstance(answer["kv"]["params_per_token"], int)
        for setup in SETUPS:
            self.assertIn(setup, answer["kv"]["capacity_tokens"])
            self.assertGreater(answer["decode"][setup]["W"], 0)
            self.assertGreater(answer["decode"][setup]["B_ms"], 0)
        for setup in SETUPS[:3]:
            for kind in ["rough", "exact"]:
                points = answer["prefill"]["turning_points"][setup][kind]
                self.assertEqual(len(points), 2)
                for point in points:
                    self.assertIsInstance(point, int)

    def test_binary_units_give_the_published_figures(self):
        answer = ask("--model", "qwen1.5-7b", "--machine", "rtx4090", "--units", "binary")
        giga = 2**30
        got = ["%.2f" % (answer["params"][key] / giga) for key in ["layers", "lm_head", "active", "total"]]
        self.assertEqual(got, ["6.03", "0.58", "6.61", "7.19"])
        self.assertEqual(answer["kv"]["params_per_token"], 2**18)
        self.assertEqual([answer["kv"]["capacity_tokens"][s] for s in SETUPS], [22072, 35612, 42382, 38997, 84764])
        points = answer["prefill"]["turning_points"]
        self.assertEqual(points["w16kv16"], {"rough": [99, 553], "exact": [113, 481]})
        self.assertEqual(points["w8kv16"], {"rough": [45, 607], "exact": [50, 544]})
        self.assertEqual(points["w4kv16"], {"rough": [21, 630], "exact": [23, 571]})
        decode = [(round(answer["decode"][s]["W"]), "%.2f" % answer["decode"][s]["B_ms"]) for s in SETUPS[:3]]
        self.assertEqual(decode, [(2064, "13.12"), (2064, "6.56"), (2064, "3.28")])

    def test_si_units_only_rescale_the_machine(self):
        si = ask("--model", "qwen1.5-7b", "--machine", "rtx4090")
        binary = ask("--model", "qwen1.5-7b", "--machine", "rtx4090", "--units", "binary")
        self.assertEqual(si["params"], binary["params"])
        self.assertEqual(si["kv"]["capacity_tokens"], binary["kv"]["capacity_tokens"])
        ratio = si["decode"]["w16kv16"]["B_ms"] / binary["decode"]["w16kv16"]["B_ms"]
        self.assertAlmostEqual(ratio, 2**30 / 1e9, places=9)

    def test_null_means_it_does_not_fit_or_never_turns(self):
        big = ask("--model", "qwen1.5-72b", "--machine", "rtx4090")
        self.assertEqual([big["kv"]["capacity_tokens"][s] for s in SETUPS], [None] * 5)
        small = ask("--model", "qwen1.5-0.5b", "--machine", "rtx4090", "--units", "binary")
        self.assertIsNone(small["prefill"]["turning_points"]["w16kv16"]["rough"])
        self.assertEqual(small["prefill"]["turning_points"]["w4kv16"]["exact"], [44, 106])

    def test_grouped_heads(self):
        shared = ask("--model", "qwen1.5-32b", "--machine", "rtx4090", "--units", "binary")
        alone = ask("--model", "qwen1.5-32b-nogqa", "--machine", "rtx4090", "--units", "binary")
        self.assertEqual(shared["kv"]["params_per_token"] * 5, alone["kv"]["params_per_token"])
        self.assertEqual(shared["kv"]["capacity_tokens"]["w6kv16"], 7515)
        self.assertIsNone(alone["kv"]["capacity_tokens"]["w6kv16"])
        self.assertEqual(shared["other_grouping"]["kv_params_per_token"], alone["kv"]["params_per_token"])
        self.assertEqual(shared["other_grouping"]["params_active"], alone["params"]["active"])

    def test_lists_batch_and_fractional_bits(self):
        answer = ask("--model", "llama-3.1-8b", "--machine", "h200", "--weights-bits", "16,4.5", "--kv-bits", "16,8",
                     "--context", "1k,100000", "--prompt", "7", "--batch", "3")
        self.assertEqual(list(answer["decode"]), ["w16kv16", "w16kv8", "w4.5kv16", "w4.5kv8"])
        self.assertEqual([step["context"] for step in answer["decode"]["w4.5kv8"]["steps"]], [1024, 100000])
        self.assertEqual(answer["prefill"]["latency"]["w16kv16"][0]["prompt"], 7)
        self.assertEqual(answer["batch"], 3)
        for step in answer["decode"]["w16kv16"]["steps"]:
            read = step["read_weights_ms"] + step["read_kv_ms"]
            self.assertAlmostEqual(step["latency_ms"], max(read, step["compute_ms"]))
            self.assertAlmostEqual(step["tokens_per_s"], 3e3 / step["latency_ms"], places=6)

    def test_every_listed_name_answers(self):
        code, out, _ = run("--list")
        self.assertEqual(code, 0)
        models, machines = out.split("machines\n")
        models = [line.split()[0] for line in models.splitlines()[1:] if line.strip()]
        machines = [line.split()[0] for line in machines.splitlines() if line[2:3].strip()]  # not what a line goes on with
        self.assertGreater(len(models), 40)
        for model in models:
            self.assertEqual(ask("--model", model, "--machine", "h200")["model"]["name"], model)
        for machine in machines:
            if machine != "this":
                self.assertEqual(ask("--model", "llama-2-7b", "--machine", machine)["machine"]["name"], machine)


class Files(unittest.TestCase):
    def test_pictures_and_page(self):
        with tempfile.TemporaryDirectory() as folder:
            svg, page = os.path.join(folder, "a.svg"), os.path.join(folder, "a.html")
            code, out, _ = run("--model", "qwen1.5-7b", "--machine", "rtx4090", "--units", "binary", "--svg", svg, "--html", page)
            self.assertEqual(code, 0)
            self.assertIn("reading weights", out)
            xml.dom.minidom.parse(svg)
            with open(svg) as file:
                picture = file.read()
            for label in ["rough 99", "exact 113", "exact 481", "rough 553", "gate/up", "tokens of context"]:
                self.assertIn(label, picture)
            written = WrittenPage(page)
            self.assertEqual(len(written.pictures), 3)
            self.assertEqual(len(written.parts("table")), 6)
            self.assertEqual(written.data, ask("--model", "qwen1.5-7b", "--machine", "rtx4090", "--units", "binary"))
            for label in ["rough 99", "exact 481"]:
                self.assertIn(label, written.words())

    def test_config_json(self):
        config = {"model_type": "llama", "num_hidden_layers": 22, "hidden_size": 2048, "intermediate_size": 5632,
                  "vocab_size": 32000, "num_attention_heads": 32, "num_key_value_heads": 4, "tie_word_embeddings": False}
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "config.json")
            with open(path, "w") as file:
                json.dump(config, file)
            known = ask("--model", "tinyllama-1.1b", "--machine", "rtx4090")
            for model in [path, folder]:
                self.assertEqual(ask("--model", model, "--machine", "rtx4090")["params"], known["params"])
            with open(path, "w") as file:
                file.write('{"num_hidden_layers": "many"}')
            code, out, err = run("--model", path, "--machine", "rtx4090")
            self.assertEqual((code, out), (2, ""))
            self.assertIn("'num_hidden_layers' is \"many\"", err)


class Errors(unittest.TestCase):
    def refused(self, *args, says):
        code, out, err = run(*args)
        self.assertEqual(code, 2, args)
        self.assertEqual(out, "", args)
        self.assertEqual(err.count("\n"), 1, err)
        self.assertTrue(err.startswith("error: "), err)
        self.assertIn(says, err)

    def test_one_sentence_and_exit_code_2(self):
        good = ["--model", "qwen1.5-7b", "--machine", "rtx4090"]
        for extra, says in [
            (["--batch", "0"], "--batch 0: must be from 1 to"),
            (["--batch", "-1"], "--batch -1: must be from 1 to"),
            (["--context", "0"], "--context 0"),
            (["--context", "99999999999999999999"], "must be from 1 to"),
            (["--prompt", "1,x"], "--prompt 'x': not a whole number"),
            (["--weights-bits", "nan"], "--weights-bits nan: must be a finite number"),
            (["--weights-bits", "-4"], "must be above 0"),
            (["--kv-bits", "1e99"], "--kv-bits 1e99: must be at most 64"),
            (["--memory", "24"], "the unit is missing"),
            (["--memory", "0GiB"], "must be above 0"),
            (["--memory", "1e30GiB"], "no machine has that much"),
            (["--bandwidth", "fast"], "not a number"),
            (["--tflops", "inf"], "must be a finite number"),
            (["--tflops", "1e400"], "too large"),
            (["--units", "metric"], "must be si or binary"),
            (["--compute", "int4"], "--compute 'int4'"),
            (["--svg", "/no/such/folder/a.svg"], "cannot be written"),
            (["--modle", "x"], "did you mean '--model'?"),
            (["stray"], "unexpected argument 'stray'"),
        ]:
            self.refused(*good, *extra, says=says)

    def test_names(self):
        self.refused("--model", "qwen1.5-7", "--machine", "rtx4090", says="did you mean 'qwen1.5-7b'?")
        self.refused("--model", "qwen1.5-7b", "--machine", "rtx4900", says="did you mean 'rtx4090'?")
        self.refused("--model", "/no/such/model", "--machine", "rtx4090", says="no such file or folder")
        self.refused("--machine", "rtx4090", says="--model is missing")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    CELER = sys.argv.pop(1)
    unittest.main()
