#!/usr/bin/env python3
"""Makes tests/golden/predictors: golden models with a layer for multi-token prediction, and what transformers computes with it.

  python tools/make_golden_predictors.py --out tests/golden          # after make_golden_models.py, half a minute

The layer is transformers' own MtpLayer around a decoder layer of the family, in the file under the names of published
checkpoints. It is trained for a moment on the model's own text, so that some of its drafts are accepted.
"""

import argparse
import copy
import json
import pathlib
import shutil
import sys

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.modeling_layers import MtpLayer

sys.path.append(str(pathlib.Path(__file__).resolve().parent))
import make_golden_models as golden  # noqa: E402

SEED = 5
DEPTH = 4  # tokens drafted behind the prompt
QWEN = {"eh_proj": "mtp.fc", "enorm": "mtp.pre_fc_norm_embedding", "hnorm": "mtp.pre_fc_norm_hidden", "post_norm": "mtp.norm"}
DEEPSEEK = {"eh_proj": "eh_proj", "enorm": "enorm", "hnorm": "hnorm", "post_norm": "shared_head.norm"}
MODELS = ["deepseek_v3", "glm4_moe", "qwen3_next", "qwen3_5"]


class Predictor(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        config = copy.deepcopy(model.config)
        config.num_hidden_layers = 1
        if getattr(config, "layer_types", None):
            config.layer_types = ["full_attention"]
        if hasattr(config, "first_k_dense_replace"):
            config.first_k_dense_replace = 0
        if hasattr(config, "mlp_only_layers"):
            config.mlp_only_layers = []
        block = type(model.model.layers[-1])
        self.config, self.model = config, [model]  # whose parameters are not this module's
        self.layer = MtpLayer(config, block, type(model.model.norm), 0)

    def forward(self, ids, hidden):
        """Logits and hidden states of ids [n], each with the hidden state [n, width] in front of it."""
        model = self.model[0]
        n = len(ids)
        places = torch.arange(1, n + 1)[None]
        embedded = model.model.embed_tokens(torch.tensor([ids]))
        mask = torch.full((n, n), -torch.inf).triu(1)[None, None]
        out = self.layer(embedded, hidden[None], model.model.rotary_emb(embedded, places), mask, places, None)
        return model.lm_head(out)[0], out[0]


@torch.no_grad()
def texts(model, rng, prompt, count=24, length=64):
    """Greedy continuations of random prompts, and the hidden states in them, after the last norm."""
    ids = torch.from_numpy(rng.integers(3, model.config.vocab_size, (count, 8)))
    ids[0, :] = torch.tensor(prompt[:8])
    out = model.generate(ids, max_new_tokens=length, min_new_tokens=length, do_sample=False)
    return [(row.tolist(), hidden) for row, hidden in
            zip(out, model(out, output_hidden_states=True).hidden_states[-1])]


def train(predictor, model, rng, prompt):
    known = texts(model, rng, prompt)
    optimizer = torch.optim.Adam(predictor.parameters(), lr=4e-3)
    for step in range(250):
        row, hidden = known[step % len(known)]
        logits, _ = predictor(row[1:-1], hidden[:-2])
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor(row[2:]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for p in predictor.parameters():
        p.data.copy_(p.data.to(torch.bfloat16).float())
        p.data[p.data.abs() < 2.0**-16] = 0


def tensors_of(predictor, name):
    qwen = name.startswith("qwen")
    names = QWEN if qwen else DEEPSEEK
    layer = f"model.layers.{predictor.model[0].config.num_hidden_layers}."
    block = "mtp.layers.0." if qwen else layer
    out = {}
    for key, value in predictor.layer.state_dict().items():
        part = key.removesuffix(".weight")
        if part in names:
            out[("" if qwen else layer) + names[part] + ".weight"] = value
            continue
        key = block + key.removeprefix("mtp_block.")
        if key.endswith("mlp.experts.gate_up_proj"):
            for e, both in enumerate(value):
                gate, up = both.chunk(2)
                out[key.replace("gate_up_proj", f"{e}.gate_proj.weight")] = gate
                out[key.replace("gate_up_proj", f"{e}.up_proj.weight")] = up
        elif key.endswith("mlp.experts.down_proj"):
            for e, down in enumerate(value):
                out[key.replace("down_proj", f"{e}.down_proj.weight")] = down
        else:
            out[key] = value
    if not qwen:  # published files repeat these
        out[layer + "shared_head.head.weight"] = predictor.model[0].lm_head.weight.data
        out[layer + "embed_tokens.weight"] = predictor.model[0].model.embed_tokens.weight.data
    keep = "e_score_correction_bias"
    return {k: (v.float() if keep in k else v.to(torch.bfloat16)).contiguous().clone() for k, v in out.items()}


def make(name, out):
    source, folder = out / "models" / name, out / "predictors" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    model = golden.load(source)
    facts = json.loads((source / "golden.json").read_text())
    rng = np.random.Generator(np.random.PCG64(SEED))
    torch.manual_seed(SEED)
    predictor = Predictor(model)
    golden.fill(predictor, rng)
    prompt = facts["prompt"]
    train(predictor, model, rng, prompt)
    with torch.no_grad():
        text = prompt + facts["greedy"]
        hidden = model(torch.tensor([text]), output_hidden_states=True).hidden_states[-1][0]
        logits, _ = predictor(text[1:], hidden[:-1])
        right = sum(int(row.argmax()) == token for row, token in zip(logits, text[2:]))
        # Behind the prompt it goes on by itself.
        ids, before, drafted, rows = text[1:len(prompt) + 1], hidden[:len(prompt)], [], []
        for _ in range(DEPTH):
            row, own = predictor(ids, before)
            rows.append(row[-1])
            drafted.append(int(row[-1].argmax()))
            ids, before = ids + [drafted[-1]], torch.cat([before, own[-1:]])
    config = json.loads((source / "config.json").read_text())
    config["mtp_num_hidden_layers" if name.startswith("qwen") else "num_nextn_predict_layers"] = 1
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    state = load_file(source / "model.safetensors")
    save_file(state | tensors_of(predictor, name), folder / "model.safetensors", metadata={"format": "pt"})
    golden.write_golden(folder / "golden", dict(model=name, prompt=prompt, greedy=facts["greedy"], drafted=drafted, right=right),
                        {"logits": logits[:len(prompt)].contiguous(), "drafted_logits": torch.stack(rows)})
    golden.readable(folder)
    print(f"{name}: {right} of {len(text) - 2} tokens right")


def make_gguf(name, out):
    """GLM-4.5's as llama.cpp's converter writes it, with the same reference."""
    sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "configs"))
    from draws import experts
    config = json.loads((out / "predictors" / name / "config.json").read_text())
    config["num_hidden_layers"] += config["num_nextn_predict_layers"]
    state = load_file(out / "predictors" / name / "model.safetensors")
    tensors = [(key, "F32", list(value.shape), value.float().numpy().ravel()) for key, value in sorted(state.items())]
    folder = out / "predictors" / "gguf"
    folder.mkdir(exist_ok=True)
    experts.glm4_moe_gguf({"config": config, "dtype": "BF16"}, folder, tensors).rename(folder / f"{name}.gguf")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("tests/golden"))
    parser.add_argument("--only", nargs="*", default=MODELS, choices=MODELS)
    parser.add_argument("--gguf", action="store_true", help="the GGUF file alone")
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for name in args.only if not args.gguf else []:
        make(name, args.out)
    if args.gguf or "glm4_moe" in args.only:
        make_gguf("glm4_moe", args.out)


if __name__ == "__main__":
    main()
