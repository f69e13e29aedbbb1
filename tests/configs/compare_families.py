#!/usr/bin/env python3
"""Random models of the families in draws/: logits as transformers computes them.

  compare_families.py --runner build-cpu/tests/configs/celer_family_check --check     # the samples, no torch needed
  compare_families.py --runner ... --count 100 [--family gemma2,gemma3] [--jobs 2]    # draw and compare; needs torch
  compare_families.py --runner ... --family gemma2 --write-sample 12                  # make samples/gemma2.json.xz again
  compare_families.py --runner ... --family gemma2 --spoil                            # every case must fail

A case passes if celer's logits of a prompt and of the tokens that it chooses after it are within 1e-4 of transformers'
(over the greatest logit), and if they have the same bits however the work is cut into steps (family_main.cc). "noise":
a row of logits that transformers itself computes no better, by runs in f64 with weights that differ in the last place.
Weights are drawn, not those of a fresh model: there biases are 0, norms 1 and logits tiny.

draws/llama.py says what a function there gives. Packages: tools/requirements-golden.txt. A sample holds configurations,
names of tensors and logits; its weights are drawn again.
"""

import argparse
import collections
import copy
import importlib.util
import json
import lzma
import math
import multiprocessing
import os
import pathlib
import random
import re
import shutil
import struct
import sys
import tempfile
import traceback

import compare_transformers as base
from compare_transformers import TOLERANCE, encode, power_of_two, sentence, values, without_folder

HERE = pathlib.Path(__file__).resolve().parent
SAMPLES = HERE / "samples"
GREEDY = 64
SAMPLE_GREEDY = 16  # of the cases in CI
SIZES = {"F32": 4, "F16": 2, "BF16": 2}


def load_draws():
    """{family: (module, function)}"""
    families = {}
    for path in sorted((HERE / "draws").glob("*.py")):
        spec = importlib.util.spec_from_file_location(f"draws.{path.stem}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for name, draw in module.FAMILIES.items():
            assert name not in families, f"{name} is in two files"
            families[name] = (module, draw)
    return families


DRAWS = load_draws()


# ---- models ---------------------------------------------------------------------------------------------------------


def draw(family, number, seed, greedy):
    rng = random.Random(f"{family} {number} {seed}")
    drawn = DRAWS[family][1](rng)
    greedy = min(drawn.get("greedy", GREEDY), greedy)
    vocab = drawn["config"].get("text_config", {}).get("vocab_size") or drawn["config"]["vocab_size"]
    case = {"family": family, "number": number, "seed": rng.getrandbits(32), "greedy": greedy,
            "config": drawn["config"], "cls": drawn.get("cls"), "refused": drawn.get("refused"), "form": drawn.get("form"),
            "ranges": drawn.get("ranges", {}), "weights": drawn.get("weights", "stored"),
            "attention": drawn.get("attention", "eager"),
            "dtype": drawn.get("dtype") or rng.choice(["F32", "F32", "F16", "BF16"]),
            "shards": rng.choice([1, 1, 2, 3]),
            "raw": drawn["raw"] if "raw" in drawn else rng.random() < 0.5,
            "step": drawn["step"] if "step" in drawn else rng.random() < 0.5,
            "tokens": [rng.randrange(vocab) for _ in range(drawn["length"])]}
    case["prefill"] = rng.choice([len(case["tokens"]), max(1, len(case["tokens"]) - 3)])
    return case


def numbers_of(case, name, shape, around, spread):
    """The drawn numbers of a tensor; around and spread are those of a fresh one's, if it is a vector."""
    rng, count = random.Random(f"{case['seed']} {name}"), math.prod(shape)
    for pattern, (low, high) in case["ranges"].items():
        if re.search(pattern, name):
            return [(low + high) / 2 + x for x in values(rng, count, (high - low) / 2, case["dtype"])]
    if around is not None:
        return [around + x for x in values(rng, count, max(0.25, spread), case["dtype"])]
    if re.search(r"embed|wte|wpe|lm_head", name):
        return values(rng, count, 1.0, case["dtype"])
    inputs = max(shape[-2:]) if len(shape) == 3 and "conv" not in name else shape[-1]
    return values(rng, count, power_of_two(2.5 / math.sqrt(inputs)), case["dtype"])


def tensors_of(case):
    return [(name, case["dtype"], shape, numbers_of(case, name, shape, around, spread))
            for name, shape, around, spread in case["tensors"]]


def write_case(case, folder, spoil=False):
    """Writes the model as transformers reads it; gives the path of celer's."""
    tensors = tensors_of(case)
    config = json.dumps(case["config"])
    (folder / "config.json").write_text(config)
    base.write_safetensors(folder, [(n, d, s, encode(x, d)) for n, d, s, x in tensors], case["shards"])
    if not spoil and not case["form"]:
        return folder
    other = folder / "celer"
    other.mkdir()
    if spoil:
        name, dtype, shape, numbers = tensors[random.Random(case["seed"]).randrange(len(tensors))]
        case["spoiled"] = name
        numbers[:] = [-x + 0.25 for x in numbers]
    if case["form"]:
        return DRAWS[case["family"]][0].FORMS[case["form"]](case, other, tensors)
    (other / "config.json").write_text(config)
    base.write_safetensors(other, [(n, d, s, encode(x, d)) for n, d, s, x in tensors], case["shards"])
    return other


def header_of(path):
    with open(path, "rb") as file:
        return json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))


def class_and_config(case):
    """Class of transformers and a fresh configuration: models keep the attention's kind in it."""
    import transformers
    fields = copy.deepcopy(case["config"])
    if case["cls"]:
        cls = getattr(transformers, case["cls"])
        fields.pop("model_type", None)
        config = cls.config_class(**fields)
    else:
        config = transformers.AutoConfig.for_model(**fields)
        cls = transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    return cls, config


def fresh_tensors(case):
    """Sets case["tensors"], names and shapes as transformers stores them, and case["config"] as celer reads it."""
    import torch
    import safetensors.torch
    cls, config = class_and_config(case)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as temp:
        cls._from_config(config, attn_implementation="eager", dtype=torch.float32).save_pretrained(temp)
        found = {}
        for path in sorted(pathlib.Path(temp).glob("*.safetensors")):
            found.update(safetensors.torch.load_file(path))
        saved = json.loads((pathlib.Path(temp) / "config.json").read_text())
    case["tensors"] = []
    for name, tensor in sorted(found.items()):
        around = spread = None
        if tensor.dim() == 1 and tensor.numel():
            around = round(tensor.double().mean().item(), 2)
            spread = 0 if tensor.numel() == 1 else round(tensor.double().std().item(), 2)
        case["tensors"].append([name, list(tensor.shape), around, spread])
    case["class"] = cls.__name__
    if case["raw"]:
        case["config"].setdefault("architectures", [cls.__name__])
        case["config"].setdefault("model_type", saved["model_type"])
    else:
        case["config"] = saved


def load_reference(folder, case, dtype):
    import torch
    import transformers
    cls = getattr(transformers, case["class"])
    model, info = cls.from_pretrained(folder, dtype=dtype, attn_implementation=case.get("attention", "eager"),
                                      output_loading_info=True)
    if hasattr(model, "set_experts_implementation"):
        try:
            model.set_experts_implementation("eager")
        except (ValueError, AttributeError):
            pass  # it has no experts
    for key in ("missing_keys", "mismatched_keys", "error_msgs", "unexpected_keys"):
        if info.get(key):
            raise ValueError(f"{key}: {sorted(map(str, info[key]))[0]}")
    return model.eval()


def reference_rows(model, case, tokens):
    import torch
    tokens = torch.tensor([tokens])
    with torch.no_grad():
        if not case["step"]:
            return model(tokens, use_cache=False).logits[0]
        out = model(tokens[:, :case["prefill"]], use_cache=True)
        parts = [out.logits[0]]
        for i in range(case["prefill"], tokens.shape[1]):
            out = model(tokens[:, i:i + 1], past_key_values=out.past_key_values, use_cache=True)
            parts.append(out.logits[0])
        return torch.cat(parts)


# ---- comparing ------------------------------------------------------------------------------------------------------


def worst(got, expected):
    """Greatest difference over the greatest logit."""
    import torch
    if got.shape != expected.shape:
        return math.inf
    return ((got - expected).abs().max() / expected.abs().max().clamp(min=1e-30)).item()


def within_noise(case, folder, tokens, got, rows):
    """Whether rows that differ are those that change as much with the last place of the weights."""
    import torch
    exact = reference_rows(load_reference(folder, case, torch.float64), case, tokens)
    noise = (rows.double() - exact).abs().amax(1)
    for seed in range(4):
        model = load_reference(folder, case, torch.float64)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter *= 1 + 6e-8 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        noise = torch.maximum(noise, (reference_rows(model, case, tokens) - exact).abs().amax(1))
    allowed = torch.maximum(noise * 4, torch.full_like(noise, TOLERANCE * rows.abs().max().item()))
    return bool(((got.double() - exact).abs().amax(1) <= allowed).all())


class Runner(base.Runner):
    """celer_family_check; one that aborts is an answer, too."""

    def __init__(self, path):
        self.path = path
        super().__init__(path)

    def ask(self, request):
        try:
            return super().ask(request)
        except (SystemExit, BrokenPipeError):
            super().__init__(self.path)
            return {"abort": "the runner aborted"}


def ask(case, path):
    global runner
    request = {"model": str(path), "prompt": case["tokens"], "greedy": case["greedy"], "prefill": case["prefill"],
               "weights": case.get("weights", "stored")}
    return runner.ask(request)


def faults(case, answer, folder):
    """What is wrong whatever transformers says, or None."""
    if "abort" in answer:
        return answer["abort"]
    if case["refused"]:
        said = without_folder(answer.get("error", "nothing"), folder)
        return None if sentence(said) and re.search(case["refused"], said) else f"says {said!r}, not {case['refused']!r}"
    if "error" in answer:
        return without_folder(answer["error"], folder)
    if answer["unequal"]:
        return "; ".join(answer["unequal"][:3])
    return None


def judge(case, folder, args):
    """(kind, words, difference)"""
    import torch
    try:
        fresh_tensors(case)
    except Exception as error:
        return "transformers fails", f"{type(error).__name__}: {' '.join(str(error).split())[:200]}", 0
    answer = ask(case, write_case(case, folder, args.spoil))
    words = faults(case, answer, folder)
    if words:
        return "failed", words, 0
    if case["refused"]:
        case["sentence"] = without_folder(answer["error"], folder)
        return "refused", case["sentence"], 0
    tokens = case["tokens"] + answer["tokens"]
    rows = reference_rows(load_reference(folder, case, torch.float32), case, tokens)
    if not torch.isfinite(rows).all():
        return "transformers fails", "a logit is not finite", 0
    got = torch.tensor(answer["logits"]).reshape(-1, answer["vocab"])
    difference = worst(got, rows)
    if difference > TOLERANCE:
        noise = got.shape == rows.shape and not args.spoil and within_noise(case, folder, tokens, got, rows)
        return ("noise", "", difference) if noise else ("failed", f"differs by {difference:.2e}", difference)
    margin = torch.topk(rows[len(case["tokens"]) - 1:-1], 2).values if answer["tokens"] else torch.tensor([[1.0, 0.0]])
    case["clear"] = ((margin[:, 0] - margin[:, 1]).min() > 4 * TOLERANCE * rows.abs().max()).item()
    case["answer"] = answer["tokens"]
    case["logits"] = [[float(f"{x:.6g}") for x in rows[i].tolist()] for i in (len(case["tokens"]) - 1, -1)]
    return "equal", "", difference


def compare_one(work):
    family, number, args = work
    case = draw(family, number, args.seed, SAMPLE_GREEDY if args.write_sample else GREEDY)
    with tempfile.TemporaryDirectory() as temp:
        folder = pathlib.Path(temp)
        try:
            kind, words, difference = judge(case, folder, args)
        except Exception:
            kind, words, difference = "failed", traceback.format_exc(limit=-3), 0
        if kind == "failed" and args.keep:
            (folder / "case.json").write_text(json.dumps(case))
            shutil.copytree(folder, args.keep / f"{family}-{number}", dirs_exist_ok=True)
    return case, kind, words, difference


def start(path, torch_too):
    global runner
    runner = Runner(path)
    if torch_too:
        import torch
        import transformers
        torch.set_num_threads(1)
        transformers.logging.set_verbosity(50)
        transformers.logging.disable_progress_bar()


def every(args, function, work):
    """The results in order."""
    if args.jobs == 1:
        start(args.runner, function is compare_one)
        yield from map(function, work)
        return
    with multiprocessing.get_context("spawn").Pool(args.jobs, start, (args.runner, function is compare_one)) as pool:
        yield from pool.imap(function, work)


def compare(args):
    numbers = [args.number] if args.number is not None else range(args.count)
    counts, reasons = collections.defaultdict(collections.Counter), collections.Counter()
    greatest, sample, failures = collections.Counter(), collections.defaultdict(list), 0
    for case, kind, words, difference in every(args, compare_one, [(f, n, args) for f in args.family for n in numbers]):
        family = case["family"]
        counts[family][kind] += 1
        if args.spoil:
            kind = {"failed": "noticed", "equal": "failed"}.get(kind, kind)
            words = case.get("spoiled", words)
        if kind == "equal":
            greatest[family] = max(greatest[family], difference)
        if kind == "failed":
            failures += 1
            config = case["config"] if args.verbose else {k: v for k, v in case["config"].items() if v is not None}
            print(f"{family} {case['number']}: {words}\n    {json.dumps(config)}", flush=True)
        elif words:
            reasons[f"{family}: {kind}: {words[:160]}"] += 1
        if kind == "refused" or (kind == "equal" and case["clear"]):
            sample[family].append(case)
    for family in args.family:
        kinds = counts[family]
        if kinds["transformers fails"] * 5 > kinds.total():
            failures += 1
            print(f"{family}: transformers fails too often; its configurations say nothing")
        print(f"{family:20} tried {kinds.total()}: " + ", ".join(f"{kind} {n}" for kind, n in sorted(kinds.items())) +
              f"; greatest difference {greatest[family]:.1e}")
    for text, n in reasons.most_common(None if args.verbose else 10):
        print(f"    {n:4} {text}")
    if args.write_sample and not failures:
        for family in args.family:
            write_sample(family, sample[family], args.write_sample)
    return failures


# ---- samples --------------------------------------------------------------------------------------------------------

KEPT = ["family", "number", "seed", "greedy", "config", "refused", "form", "ranges", "weights", "dtype", "shards", "tokens", "prefill",
        "tensors", "sentence", "answer", "logits"]


def write_sample(family, cases, count):
    refused = [c for c in cases if "sentence" in c][:count // 4]
    cases = refused + [c for c in cases if "sentence" not in c][:count - len(refused)]
    path = SAMPLES / f"{family}.json.xz"
    text = json.dumps([{k: c[k] for k in KEPT if k in c} for c in cases])
    path.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
    print(f"{path}: {len(cases)} cases, {path.stat().st_size} bytes")
    assert len(cases) == count, "draw more"


def check_one(case):
    with tempfile.TemporaryDirectory() as temp:
        folder = pathlib.Path(temp)
        answer = ask(case, write_case(case, folder))
        words = faults(case, answer, folder)
        if words or case["refused"]:
            return case, words
        if answer["tokens"] != case["answer"]:
            return case, f"chooses {answer['tokens']}, not {case['answer']}"
        vocab, last = answer["vocab"], len(case["tokens"]) - 1
        got = answer["logits"][last * vocab:(last + 1) * vocab] + answer["logits"][-vocab:]
        expected = sum(case["logits"], [])
        scale = max(map(abs, expected))
        difference = max(abs(a - b) for a, b in zip(got, expected, strict=True)) / scale
        return case, None if difference <= 2 * TOLERANCE else f"differs by {difference:.2e}"


def check(args):
    samples = {path.name.removesuffix(".json.xz"): path for path in SAMPLES.glob("*.json.xz")}
    failures = 0
    for family in sorted(set(samples) ^ set(DRAWS)):
        failures += 1
        print(f"{family} has a sample and no function in draws/" if family in samples else
              f"{family} has no sample; compare_families.py --family {family} --write-sample 12 makes one")
    cases = [case for _, path in sorted(samples.items()) for case in json.loads(lzma.decompress(path.read_bytes()))]
    if not cases:
        print("there is no sample")
        return failures + 1
    counts = collections.Counter()
    for case, words in every(args, check_one, cases):
        counts[case["family"]] += 1
        if words:
            failures += 1
            print(f"{case['family']} {case['number']}: {words}\n    {json.dumps(case['config'])}", flush=True)
    print(f"{len(cases)} models of {len(counts)} families: " + ", ".join(sorted(counts)))
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runner", required=True, help="celer_family_check")
    parser.add_argument("--check", action="store_true", help="compare with the logits in samples/")
    parser.add_argument("--family", default=",".join(DRAWS), help="names with commas between them")
    parser.add_argument("--count", type=int, default=100, help="cases per family")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--number", type=int, help="this case only")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--keep", type=pathlib.Path, help="folder for the models of cases that fail")
    parser.add_argument("--write-sample", type=int, default=0, metavar="N", help="keep N cases per family in samples/")
    parser.add_argument("--spoil", action="store_true", help="change one of celer's tensors: all cases must fail")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    args.family = args.family.split(",")
    for family in args.family:
        if family not in DRAWS:
            sys.exit(f"draws/ has no {family}; it has {', '.join(DRAWS)}")
    failures = check(args) if args.check else compare(args)
    sys.exit(f"{failures} cases are wrong" if failures else 0)


if __name__ == "__main__":
    main()
