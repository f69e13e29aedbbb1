#!/usr/bin/env python3
"""Makes tests/golden/lora: small random adapters of the golden models, and what PEFT computes with them.

  python tests/lora/make_lora_golden.py --out tests/golden/lora            # all of them, a minute or two
  python tests/lora/make_lora_golden.py --out /tmp/lora --only dora

Versions: tools/requirements-golden.txt. Each folder has the adapter as PEFT saves it,
`golden.json` (the model's folder and the prompt) and `golden.safetensors`: `prompt_logits` f32 [24, vocab] of the model with
the adapter beside its weights. Where PEFT can merge the adapter, the merged model's logits are within 1e-5 of them.
"""

import argparse
import json
import pathlib
import shutil

import gguf
import numpy as np
import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MODELS = ROOT / "tests/golden/models"
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]

# name: (golden model, fields of LoraConfig). Without "r": 4, alpha 8.
CASES = {
    "plain": ("llama3", dict(target_modules=ATTENTION + MLP)),
    "patterns": ("llama3", dict(target_modules=ATTENTION + MLP, use_rslora=True,
                                rank_pattern={"q_proj": 2, "layers.1.mlp.up_proj": 3, r"^model\.layers\.0\.self_attn\.v_proj": 1},
                                alpha_pattern={r".*layers\.1\..*": 5, "down_proj": 3})),
    "dora": ("qwen2.5", dict(target_modules=ATTENTION + MLP, use_dora=True)),
    "dora_fused": ("phi3", dict(target_modules=["qkv_proj", "o_proj", "gate_up_proj", "down_proj"], use_dora=True)),
    "bias": ("llama_bias", dict(target_modules=ATTENTION + MLP, bias="all")),
    "lora_bias": ("granite", dict(target_modules=ATTENTION + MLP, lora_bias=True)),
    "saved": ("qwen2.5", dict(target_modules=["q_proj"], modules_to_save=["embed_tokens", "lm_head"])),
    "saved_embedding": ("smollm2", dict(target_modules=["q_proj"], modules_to_save=["embed_tokens"])),
    "embedding": ("gemma3", dict(target_modules=["embed_tokens", "o_proj"])),
    "head": ("llama3", dict(target_modules=["embed_tokens", "lm_head"])),
    "fused": ("phi3", dict(target_modules=["qkv_proj", "o_proj", "gate_up_proj", "down_proj"])),
    "conv1d": ("gpt2", dict(target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True)),
    "grouped": ("falcon", dict(target_modules=["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"])),
    "latent": ("deepseek_v3", dict(target_modules=["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"] + MLP)),
    "experts": ("qwen3_moe", dict(target_modules=ATTENTION, target_parameters=EXPERTS)),
    "experts_turned": ("gpt_oss", dict(target_modules=ATTENTION, target_parameters=EXPERTS)),
    "shared_expert": ("qwen2_moe", dict(target_modules=ATTENTION + MLP + ["shared_expert_gate"], target_parameters=EXPERTS)),
    "delta_net": ("qwen3_next", dict(target_modules=["in_proj_qkvz", "in_proj_ba", "out_proj", "q_proj", "o_proj"])),
    "delta_net_dora": ("qwen3_5", dict(target_modules=["in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj"],
                                       use_dora=True)),
    "mamba": ("nemotron_h", dict(target_modules=["in_proj", "up_proj", "down_proj", "q_proj", "k_proj"])),
    "projected": ("opt", dict(target_modules=["q_proj", "out_proj", "fc1", "fc2"])),
    "many_parts": ("gemma3n", dict(target_modules=ATTENTION + MLP + [
        "per_layer_input_gate", "per_layer_projection", "linear_left", "linear_right", "modality_router"])),
    "post_norm": ("olmo2", dict(target_modules=ATTENTION + MLP)),
    "parallel": ("cohere", dict(target_modules=ATTENTION + MLP)),
}


def load(name):
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_pretrained(MODELS / name, dtype=torch.float32, attn_implementation="eager",
                                                              experts_implementation="eager")
    return model.eval()


def randomize(model, seed):
    """What training would have made of an adapter."""
    generator = torch.Generator().manual_seed(seed)
    for name, value in model.named_parameters():
        if "lora_magnitude" in name:
            value.data *= 1 + 0.2 * torch.randn(value.shape, generator=generator)
        elif "lora_" in name:
            value.data = 0.25 * torch.randn(value.shape, generator=generator)
        elif "modules_to_save" in name or (name.endswith(".bias") and value.requires_grad):
            value.data = value.data + 0.1 * torch.randn(value.shape, generator=generator)


def make(name, out):
    base, fields = CASES[name]
    model = load(base)
    config = peft.LoraConfig(task_type="CAUSAL_LM", **{"r": 4, "lora_alpha": 8, **fields})
    adapted = peft.get_peft_model(model, config)
    randomize(adapted, sum(map(ord, name)))
    adapted.eval()
    folder = out / name
    shutil.rmtree(folder, ignore_errors=True)
    adapted.save_pretrained(folder, save_embedding_layers=False)
    (folder / "README.md").unlink(missing_ok=True)
    # What counts is what comes back from the files.
    adapted = peft.PeftModel.from_pretrained(load(base), folder).eval()
    prompt = json.loads((MODELS / base / "golden.json").read_text())["prompt"]
    with torch.no_grad():
        plain = load(base)(torch.tensor([prompt])).logits[0]
        logits = adapted(torch.tensor([prompt])).logits[0]
        far = (logits - plain).abs().max() / plain.abs().max()
        assert far > 0.01, f"{name}: the adapter changes the logits by {far:.1e} only"
        try:
            merged = adapted.merge_and_unload()(torch.tensor([prompt])).logits[0]
            apart = (merged - logits).abs().max() / logits.abs().max()
        except Exception as error:  # noqa: BLE001 - PEFT says in words what it cannot merge
            apart = str(error)[:80]
    (folder / "golden.json").write_text(json.dumps({"model": f"models/{base}", "prompt": prompt}) + "\n")
    save_file({"prompt_logits": logits.contiguous()}, folder / "golden.safetensors")
    settings = json.loads((folder / "adapter_config.json").read_text())
    settings["base_model_name_or_path"] = base
    (folder / "adapter_config.json").write_text(json.dumps(settings, indent=2, sort_keys=False) + "\n")
    print(f"{name}: changes the logits by {far:.3f}; merged and unmerged are {apart} apart")


GGUF_NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
              "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
              "mlp.down_proj": "ffn_down"}


def make_gguf(out):
    """The plain adapter as llama.cpp's converter writes it: rows of q and k in its order."""
    config = json.loads((MODELS / "llama3/config.json").read_text())
    tensors = load_file(out / "plain/adapter_model.safetensors")
    writer = gguf.GGUFWriter(out / "plain.gguf", "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 8.0)
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for name, value in sorted(tensors.items()):
        _, _, _, _, layer, block, module, kind, _ = name.split(".")
        short = GGUF_NAMES[f"{block}.{module}"]
        value = value.numpy()
        if short in heads and kind == "lora_B":
            value = value.reshape(heads[short], 2, -1, value.shape[-1]).swapaxes(1, 2).reshape(value.shape)
        writer.add_tensor(f"blk.{layer}.{short}.weight.{kind.lower()}", np.ascontiguousarray(value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--only")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    args.out.mkdir(parents=True, exist_ok=True)
    failed = []
    for name in CASES:
        if args.only and name not in args.only.split(","):
            continue
        try:
            make(name, args.out)
        except Exception as error:  # noqa: BLE001 - all others are still made
            failed.append(name)
            print(f"{name}: {type(error).__name__}: {str(error)[:300]}")
    if not args.only or "plain" in args.only.split(","):
        make_gguf(args.out)
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
