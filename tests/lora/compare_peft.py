#!/usr/bin/env python3
"""Random LoRA adapters of every group of families: logits as PEFT computes them, or one sentence.

  compare_peft.py --runner build/tests/configs/celer_config_logits --celer build/celer [--count 20] [--group plain,experts] [--seed 1]
  ... --base q4_k,gptq,fp8-block                # the same on models whose weights are quantized
  ... --gguf llama.cpp/convert_lora_to_gguf.py  # adapters in GGUF, as llama.cpp's converter writes them, on a folder and on GGUF

Not in CI: it needs torch and PEFT (tools/requirements-golden.txt); lora_test.cc has a fixed sample. Each case draws a golden
model of the group, in f32, and an adapter: rank, alpha, targets, rsLoRA, patterns, DoRA, biases, saved modules, experts. It is
equal if the logits of the model with the adapter beside it, and of what `celer merge` writes, are within 1e-4 of PEFT's over the
greatest logit. What celer refuses must be refused in one sentence; the sentences are counted. Prints the rows of a table.
"""
import argparse
import collections
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import warnings

import peft
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
TOLERANCE = 1e-4  # over the greatest logit

GROUPS = {
    "plain": ["llama2", "llama3", "qwen2.5", "qwen3", "mistral", "smollm2", "smollm3", "granite", "exaone4", "olmo2", "hunyuan", "ministral3",
              "ernie4_5"],
    "fused": ["phi3", "glm", "glm4"],
    "LayerNorm": ["gpt2", "gpt_neox", "gptj", "opt", "bloom", "falcon", "mpt", "phi2", "stablelm", "starcoder2", "cohere", "cohere2"],
    "Gemma": ["gemma", "gemma2", "gemma3", "gemma3n", "gemma4"],
    "experts": ["qwen3_moe", "qwen2_moe", "mixtral", "gpt_oss", "granitemoe", "granitemoeshared", "olmoe", "phimoe", "glm4_moe", "minimax_m2",
                "ernie4_5_moe", "llama4", "hunyuan_v1_moe"],
    "latent": ["deepseek_v2", "deepseek_v3", "glm4_moe_lite"],
    "recurrent": ["qwen3_next", "qwen3_5", "qwen3_5_moe", "bamba", "granitemoehybrid", "nemotron_h"],
    "biases": ["llama_bias", "qwen2", "qwen1.5", "gpt_oss", "starcoder2", "phi2"],
}


def in_f32(model, folder):
    """A copy whose weights are f32, so that what celer merge writes loses nothing."""
    folder.mkdir(parents=True)
    shutil.copy(model / "config.json", folder)
    tensors = {}
    for file in sorted(model.glob("*.safetensors")):
        if file.name.startswith("golden"):
            continue
        with safe_open(file, "pt") as opened:
            tensors |= {name: opened.get_tensor(name).float() for name in opened.keys()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def load(folder):
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                                             experts_implementation="eager").eval()


class Draw:
    """The fields of a LoraConfig for a model, and how large its random numbers are."""

    def __init__(self, rng, model, plain=False):
        self.rng, self.plain = rng, plain
        conv1d = transformers.pytorch_utils.Conv1D
        self.linear = [name for name, module in model.named_modules() if isinstance(module, (torch.nn.Linear, conv1d))]
        self.embeddings = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Embedding)]
        self.head = next((name for name, module in model.named_modules() if module is model.get_output_embeddings()), None)
        embedding = next(name for name, module in model.named_modules() if module is model.get_input_embeddings())
        self.ends = [embedding] + ([self.head] if self.head else [])
        self.products = [name for name in self.linear if name != self.head]
        self.short = sorted({name.split(".")[-1] for name in self.products})
        self.stacks = sorted({".".join(name.split(".")[-3:]) for name, value in model.named_parameters() if value.dim() == 3 and "experts" in name
                              and not any(name.startswith(one + ".") for one in self.linear)})
        self.fields = self.draw()

    def chance(self, p):
        return self.rng.random() < p

    def some(self, values, least=1):
        return sorted(self.rng.sample(values, self.rng.randint(min(least, len(values)), len(values))))

    def targets(self):
        kind = self.rng.choice(["all", "all", "some", "some", "one", "full", "expression"])
        if kind == "all":
            return "all-linear"
        if kind == "one":
            return [self.rng.choice(self.short)]
        if kind == "full":
            return self.some(self.products)
        if kind == "expression":
            return ".*\\.(" + "|".join(map(re.escape, self.some(self.short))) + ")"
        return self.some(self.short)

    def pattern(self):
        name = self.rng.choice(self.products)
        parts = name.split(".")
        return self.rng.choice([parts[-1], ".".join(parts[-2:]), ".".join(parts[-3:]), "^" + re.escape(name), ".*" + re.escape(parts[-1]),
                                ".*\\." + self.rng.choice("01") + "\\..*"])

    def draw(self):
        rng = self.rng
        fields = {"r": rng.choice([1, 2, 3, 4, 4, 8, 8, 16, 33]), "lora_alpha": rng.choice([1, 4, 8, 16, 16, 32, 5, 0.5]),
                  "target_modules": self.targets()}
        if self.plain:  # what llama.cpp's form holds: one alpha, no more
            fields["target_modules"] = self.some(self.short)
            fields["rank_pattern"] = {}
            return fields
        fields["use_rslora"] = self.chance(0.3)
        fields["use_dora"] = self.chance(0.25)
        if self.chance(0.3):
            fields["rank_pattern"] = {self.pattern(): rng.randint(1, 12) for _ in range(rng.randint(1, 3))}
        if self.chance(0.3):
            fields["alpha_pattern"] = {self.pattern(): rng.choice([1, 2, 7, 24]) for _ in range(rng.randint(1, 3))}
        if self.chance(0.2):
            fields["bias"] = rng.choice(["all", "lora_only"])
        elif self.chance(0.2) and not fields["use_dora"]:
            fields["lora_bias"] = True
        if self.stacks and self.chance(0.5) and not fields["use_dora"]:
            fields["target_parameters"] = self.some(self.stacks)
            fields.pop("lora_bias", None)
        if isinstance(fields["target_modules"], list) and self.chance(0.25) and not fields["use_dora"] and not fields.get("lora_bias"):
            fields["target_modules"] = fields["target_modules"] + self.some(self.ends)
        elif self.chance(0.25):
            fields["modules_to_save"] = [name.split(".")[-1] for name in self.some(self.ends)]
        if fields["target_modules"] != "all-linear" and not isinstance(fields["target_modules"], str) and self.chance(0.15):
            fields["layers_to_transform"] = [rng.randint(0, 1)]
        if self.chance(0.1) and fields["target_modules"] == "all-linear":
            fields["exclude_modules"] = [rng.choice(self.short)]
        if self.chance(0.1):
            fields["init_lora_weights"] = "gaussian"
        return fields


def randomize(model, rng):
    """What training would have made of an adapter: it changes each product by about a third of what it is."""
    generator = torch.Generator().manual_seed(rng.randrange(1 << 30))
    size = rng.choice([0.1, 0.2, 0.25])
    for name, value in model.named_parameters():
        noise = torch.randn(value.shape, generator=generator)
        if "lora_magnitude" in name:
            value.data *= 1 + 0.2 * noise
        elif "lora_" in name:
            value.data = size * noise
        elif "modules_to_save" in name or (name.endswith(".bias") and value.requires_grad):
            value.data = value.data + 0.1 * noise


def apart(expected, got):
    return float((got - expected).abs().max() / expected.abs().max())


class Celer:
    def __init__(self, runner, celer):
        self.celer = celer
        self.process = subprocess.Popen([runner], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def logits(self, model, tokens, adapters=()):
        """[tokens, vocab], or the sentence."""
        self.process.stdin.write(json.dumps({"model": str(model), "tokens": tokens, "lora": [str(path) for path in adapters]}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the runner ended at {model} with {adapters}")
        answer = json.loads(line)
        return answer["error"] if "error" in answer else torch.tensor(answer["logits"]).reshape(len(tokens), -1)

    def run(self, *args):
        """None, or the sentence."""
        done = subprocess.run([self.celer, *map(str, args)], capture_output=True, text=True, timeout=300)
        if done.returncode not in (0, 2):
            raise SystemExit(f"celer {' '.join(map(str, args))}: exit code {done.returncode}: {done.stderr}")
        return done.stderr[done.stderr.rfind("error: "):] if done.returncode else None


def sentence(text, folder):
    """Without what differs from case to case."""
    text = text.strip().removeprefix("error: ")
    assert "\n" not in text and len(text) > 20, text
    text = text.replace(str(folder), "")
    return re.sub(r"\b(layers|h|blocks)\.\d+", r"\1.N", text)[:200]


class Tally:
    def __init__(self, group):
        self.group, self.kinds = group, collections.Counter()
        self.worst = {"unmerged": 0.0, "merged": 0.0, "peft": 0.0}
        self.refused = collections.Counter()
        self.not_mergeable = collections.Counter()
        self.fields = collections.Counter()
        self.differs = []

    def row(self):
        k = self.kinds
        return (f"| {self.group} | {k['drawn']} | {k['equal']} | {self.worst['unmerged']:.1e} | {k['merged']} | {self.worst['merged']:.1e} | "
                f"{self.worst['peft']:.1e} | {sum(self.refused.values())} | {len(self.differs)} |")


def save_adapter(config, base, folder, rng):
    adapted = peft.get_peft_model(load(base), config)
    randomize(adapted, rng)
    adapted.eval()
    adapted.save_pretrained(folder, save_embedding_layers=rng.choice([False, "auto"]))


def reference(base, folder, prompt):
    """Logits of the model alone, with the adapter beside it, and merged into it (or why PEFT does not merge it)."""
    tokens = torch.tensor([prompt])
    with torch.no_grad():
        plain = load(base)(tokens).logits[0]
        adapted = peft.PeftModel.from_pretrained(load(base), folder).eval()
        beside = adapted(tokens).logits[0]
        try:
            return plain, beside, adapted.merge_and_unload()(tokens).logits[0]
        except Exception as error:  # noqa: BLE001 - PEFT says in words what it cannot merge
            return plain, beside, str(error)


def one_case(tally, celer, name, base, on, work, seed, converter):
    """`base`: the folder that PEFT reads; `on`: what celer reads, by name."""
    rng = random.Random(seed)
    prompt = [rng.randrange(3, 48) for _ in range(24)]
    draw = Draw(rng, load(base), plain=converter is not None)
    folder = work / "adapter"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        conv1d = any(isinstance(m, transformers.pytorch_utils.Conv1D) for m in load(base).modules())
        config = peft.LoraConfig(task_type="CAUSAL_LM", fan_in_fan_out=conv1d, **draw.fields)
        save_adapter(config, base, folder, rng)
        plain, beside, merged = reference(base, folder, prompt)
    except Exception as error:  # noqa: BLE001 - fields that PEFT does not take together
        tally.kinds["refused by PEFT"] += 1
        tally.not_mergeable["PEFT: " + str(error).split("\n")[0][:100]] += 1
        return False
    if not torch.isfinite(beside).all() or apart(plain, beside) < 1e-3:
        return False
    # What rounding alone makes of it: PEFT's two ways are the same in exact arithmetic, but for tied heads.
    own = apart(beside, merged) if torch.is_tensor(merged) else None
    tally.kinds["drawn"] += 1
    for key, value in draw.fields.items():
        tally.fields[key] += bool(value)
    adapters = {"adapter": folder}
    if converter:
        made = subprocess.run([sys.executable, converter, "--base", base, "--outfile", work / "adapter.gguf", "--outtype", "f32", folder],
                              capture_output=True, text=True)
        if made.returncode:
            tally.kinds["drawn"] -= 1
            tally.not_mergeable["llama.cpp: " + made.stderr.strip().split("\n")[-1][:110]] += 1
            return False
        adapters = {"adapter.gguf": work / "adapter.gguf"}
    for what, adapter in adapters.items():
        for model in on:
            got = celer.logits(model, prompt, [adapter])
            if isinstance(got, str):
                tally.refused[sentence(got, work)] += 1
                return True
            far = apart(beside, got)
            tally.worst["unmerged"] = max(tally.worst["unmerged"], far)
            if far > TOLERANCE:
                tally.differs.append(f"{name} seed {seed} {what} on {model.name}: {far:.1e}, PEFT's two {own}: {draw.fields}")
                return True
    tally.kinds["equal"] += 1
    out = work / "merged"
    shutil.rmtree(out, ignore_errors=True)
    if converter or on != [base]:
        return True
    said = celer.run("merge", base, "--lora", folder, "-o", out)
    if said:
        tally.not_mergeable["merge: " + sentence(said, work)] += 1
        return True
    far = apart(beside, celer.logits(out, prompt))
    if own is not None and own <= TOLERANCE:
        tally.worst["peft"] = max(tally.worst["peft"], own)
        far = max(far, apart(merged, celer.logits(out, prompt)))
    elif own is not None:
        tally.not_mergeable["PEFT's merged model is another one than its adapted one (tied heads)"] += 1
    tally.worst["merged"] = max(tally.worst["merged"], far)
    if far > TOLERANCE:
        tally.differs.append(f"{name} seed {seed} merged: {far:.1e}: {draw.fields}")
    else:
        tally.kinds["merged"] += 1
        with torch.no_grad():  # and transformers reads what celer wrote
            far = apart(beside, load(out)(torch.tensor([prompt])).logits[0])
        if far > TOLERANCE:
            tally.differs.append(f"{name} seed {seed} merged, in transformers: {far:.1e}: {draw.fields}")
    return True


def quantized_base(celer, kind, work):
    """(what PEFT reads, what celer reads): the dequantized numbers of the same model."""
    stored = GOLDEN / "quantized" / kind
    if not stored.exists():
        folder = work / "wide"
        said = celer.run("synth", "qwen3-0.6b", "--layers", 2, "--hidden", 256, "--intermediate", 512, "--heads", 4, "--kv-heads", 2, "--head-dim", 64,
                         "--vocab", 64, "--weights", "f32", "-o", folder)
        assert not said, said
        stored = work / f"{kind}.gguf"
        said = celer.run("convert", folder, "-o", stored, "--weights", kind, "--no-tokenizer")
        assert not said, said
    plain = work / f"{kind}-f32"
    if not stored.is_file():
        said = celer.run("convert", stored, "-o", work / f"{kind}-f32.gguf", "--weights", "f32", "--no-tokenizer")
        assert not said, said
    said = celer.run("convert", work / f"{kind}-f32.gguf" if not stored.is_file() else stored, "-o", plain, "--weights", "f32", "--no-tokenizer")
    assert not said, said
    return plain, [stored]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runner", required=True, help="celer_config_logits")
    parser.add_argument("--celer", required=True)
    parser.add_argument("--count", type=int, default=20, help="adapters of each group")
    parser.add_argument("--group", default="", help=", ".join(GROUPS))
    parser.add_argument("--model", default="", help="of the group; all of it without")
    parser.add_argument("--base", default="", help="types and folders of tests/golden/quantized")
    parser.add_argument("--gguf", metavar="CONVERTER")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    os.environ["CELER_FORCE"] = "matmul:portable"
    celer = Celer(args.runner, args.celer)
    names = args.base.split(",") if args.base else args.group.split(",") if args.group else list(GROUPS)
    failed = 0
    print("| group | adapters | equal | worst | merged equal | worst | PEFT's two ways | refused | differ |\n|---|---|---|---|---|---|---|---|---|")
    for group in names:
        tally = Tally(group)
        with tempfile.TemporaryDirectory() as folder:
            work = pathlib.Path(folder)
            bases = {}
            tries = 0
            while tally.kinds["drawn"] < args.count and tries < 4 * args.count:
                tries += 1
                models = [args.model] if args.model else [group] if args.base else GROUPS[group]
                name = models[tries % len(models)]
                if name not in bases:
                    if args.base:
                        bases[name] = quantized_base(celer, name, work)
                    else:
                        base = in_f32(GOLDEN / "models" / name, work / name)
                        bases[name] = base, [base]
                        if args.gguf:
                            said = celer.run("convert", base, "-o", work / f"{name}.gguf", "--no-tokenizer")
                            if not said:
                                bases[name][1].append(work / f"{name}.gguf")
                base, on = bases[name]
                one_case(tally, celer, name, base, on, work, f"{args.seed} {group} {tries}", args.gguf)
        print(tally.row(), flush=True)
        print(f"  drawn: {dict(tally.fields)}")
        for text, count in (tally.refused + tally.not_mergeable).most_common():
            print(f"  {count} x {text}")
        for text in tally.differs:
            print(f"  DIFFERS {text}", flush=True)
        failed += len(tally.differs)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
