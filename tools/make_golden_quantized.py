#!/usr/bin/env python3
"""Makes tests/golden/quantized: tiny checkpoints written by the packages that people quantize with, and what they mean.

  python tools/make_golden_quantized.py --out tests/golden/quantized              # all of it
  python tools/make_golden_quantized.py --out /tmp/quantized --only ct-w4a16      # those whose name begins so

Versions: tools/requirements-quantized.txt, in a venv of their own: they are large, and nothing else needs them.

NAME/ is a Hugging Face folder as the package saved it, less what is not needed here (tokenizer, generation config), with
  golden.json         prompt; sha256: of each quantized matrix, dequantized by the writer's own code with its scales in f32,
                      as little-endian f32 bytes with -0 made +0; held: what celer holds them as; max_logit
  golden.safetensors  prompt_logits, f32 [prompt, vocab]: transformers in f32 with these dequantized weights
"""

import argparse
import hashlib
import json
import os
import pathlib
import shutil
import tempfile
import traceback

os.environ.setdefault("GPTQMODEL_CPU_WORKERS", "2")
os.environ.setdefault("GPTQMODEL_DISABLE_PACK_EXT", "1")  # it would be compiled first
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file

PROMPT = [3, 17, 42, 5, 60, 11, 29, 8]
VOCAB = 64


def make_model(dtype=torch.bfloat16, hidden=64, intermediate=96, heads=2, kv_heads=1, seed=1):
    """A Llama of one layer whose weights are large enough for its logits to depend on all of them."""
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=1, num_attention_heads=heads,
        num_key_value_heads=kv_heads, vocab_size=VOCAB, max_position_embeddings=128, bos_token_id=1, eos_token_id=2,
        pad_token_id=None, tie_word_embeddings=True, rms_norm_eps=1e-5)
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(1 + 0.1 * torch.randn_like(p) if p.dim() == 1 else 0.1 * torch.randn_like(p))
    return model.to(dtype)


def base_folder(folder, **shape):
    """The model as a folder, with a tokenizer that packages insist on."""
    make_model(**shape).save_pretrained(folder)
    from tokenizers import Tokenizer, models, pre_tokenizers
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w0", eos_token="w2", pad_token="w0") \
        .save_pretrained(folder)


def calibration(n=8, length=24):
    generator = torch.Generator().manual_seed(7)
    return [torch.randint(0, VOCAB, (1, length), generator=generator) for _ in range(n)]


# ---- Writers: each fills a folder ----

def compressed_tensors(out, work, scheme=None, config_groups=None, gptq=None, **shape):
    from llmcompressor import oneshot
    from llmcompressor.modifiers.quantization import QuantizationModifier
    base_folder(work / "base", **shape)
    model = transformers.AutoModelForCausalLM.from_pretrained(work / "base", dtype=torch.bfloat16)
    if gptq:
        from datasets import Dataset
        from llmcompressor.modifiers.gptq import GPTQModifier
        rows = [{"input_ids": ids[0].tolist(), "attention_mask": [1] * ids.shape[1]} for ids in calibration(16)]
        oneshot(model=model, dataset=Dataset.from_list(rows), max_seq_length=24, num_calibration_samples=16,
                recipe=GPTQModifier(targets="Linear", ignore=["lm_head"], config_groups=config_groups, **gptq))
    else:
        oneshot(model=model, recipe=QuantizationModifier(targets="Linear", scheme=scheme, config_groups=config_groups,
                                                         ignore=["lm_head"]))
    model.save_pretrained(out, save_compressed=True)


def group(bits, size, symmetric=True, **more):
    return {"group_0": {"targets": ["Linear"], "weights": {
        "num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": "group" if size else "channel",
        "group_size": size, **more}}}


def gptqmodel(out, work, bits=4, size=32, sym=True, desc_act=False, fmt="gptq", **shape):
    from gptqmodel import GPTQModel, QuantizeConfig
    base_folder(work / "base", dtype=torch.float16, **shape)
    config = QuantizeConfig(bits=bits, group_size=size, sym=sym, desc_act=desc_act, format=fmt, device="cpu",
                            act_group_aware=False)
    model = GPTQModel.load(str(work / "base"), config)
    model.quantize([{"input_ids": ids[0].tolist(), "attention_mask": [1] * ids.shape[1]} for ids in calibration(16)],
                   batch_size=1)
    model.save(str(out))


def auto_round(out, work, fmt, bits=4, size=32, sym=False, **shape):
    from auto_round import AutoRound
    base_folder(work / "base", dtype=torch.float16, **shape)
    model = transformers.AutoModelForCausalLM.from_pretrained(work / "base", dtype=torch.float16)
    tokenizer = transformers.AutoTokenizer.from_pretrained(work / "base")
    rounder = AutoRound(model, tokenizer, bits=bits, group_size=size, sym=sym, iters=0, dataset=calibration(), seqlen=24,
                        nsamples=8, device_map="cpu")
    rounder.quantize_and_save(str(out), format=fmt)


def bitsandbytes(out, work, **config):
    base_folder(work / "base")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        work / "base", device_map="cpu", dtype=torch.bfloat16,
        quantization_config=transformers.BitsAndBytesConfig(**config))
    model.save_pretrained(out)


def fp8_of_blocks(out, work, source, scale):
    """What compressed-tensors wrote, with the names and the config of the method "fp8"."""
    compressed_tensors(work / "ct", work, scheme=source, hidden=128, intermediate=256 if source == "FP8_BLOCK" else 96)
    out.mkdir(parents=True)
    tensors = {name.replace(".weight_scale", scale): t for name, t in load_file(work / "ct/model.safetensors").items()}
    config = json.loads((work / "ct/config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3"}
    if source == "FP8_BLOCK":
        config["quantization_config"]["weight_block_size"] = [128, 128]
    (out / "config.json").write_text(json.dumps(config, indent=2))
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})


def mxfp4_blocks(out, work):
    """gpt-oss' packing of two experts: no other model has it, so there are tensors and no logits."""
    out.mkdir(parents=True)
    generator = torch.Generator().manual_seed(3)
    blocks = torch.randint(0, 256, (2, 24, 3, 16), generator=generator, dtype=torch.uint8)
    scales = torch.randint(110, 134, (2, 24, 3), generator=generator, dtype=torch.uint8)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    save_file({f"{name}_blocks": blocks, f"{name}_scales": scales}, out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps({"model_type": "gpt_oss", "quantization_config": {
        "quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}}, indent=2))


# ---- Dequantizers: the writer's own code, scales in f32 ----

def dequantize_compressed(tensors, config):
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import dequantize
    (only,) = config["config_groups"].values()
    args = QuantizationArgs(**only["weights"])
    out = {}
    for name in [n[:-len("_scale")] for n in tensors if n.endswith(".weight_scale")]:
        scale, zero, order = tensors[name + "_scale"], tensors.get(name + "_zero_point"), tensors.get(name + "_g_idx")
        extra = {}
        if name + "_packed" in tensors and tensors[name + "_packed"].dtype == torch.uint8:
            packed = tensors[name + "_packed"]
            values = unpack_fp4_from_uint8(packed, packed.shape[0], packed.shape[1] * 2, dtype=torch.float32)
            if scale.dtype == torch.uint8:
                scale = 2.0 ** (scale.to(torch.float32) - 127)
            else:
                extra["global_scale"] = tensors[name + "_global_scale"]
        elif name + "_packed" in tensors:
            shape = torch.Size(tensors[name + "_shape"].tolist())
            values = unpack_from_int32(tensors[name + "_packed"], args.num_bits, shape)
            if zero is not None:
                zero = unpack_from_int32(zero, args.num_bits, torch.Size((shape[0], scale.shape[-1])), packed_dim=0)
        else:
            values = tensors[name]
        scale = scale.to(torch.float32)
        if order is not None:
            columns = torch.argsort(order, stable=True)
            weight = torch.empty(values.shape, dtype=torch.float32)
            weight[:, columns] = dequantize(values[:, columns], scale, zero, args, torch.float32, **extra)
            out[name] = weight
        else:
            out[name] = dequantize(values, scale, zero, args, torch.float32, **extra)
    return out


def dequantize_gptq(tensors, config):
    """GPTQModel's own linear layer, with its scales in f32."""
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear
    from gptqmodel.utils.model import convert_gptq_v1_to_v2_format_module
    out = {}
    for name in [n[:-len(".qweight")] for n in tensors if n.endswith(".qweight")]:
        qweight, scales = tensors[name + ".qweight"], tensors[name + ".scales"]
        k, n = qweight.shape[0] * 32 // config["bits"], qweight.shape[1]
        layer = TorchLinear(bits=config["bits"], group_size=config["group_size"], sym=config["sym"],
                            desc_act=config["desc_act"], in_features=k, out_features=n, bias=False,
                            pack_dtype=torch.int32, register_buffers=True)
        layer.qweight, layer.qzeros = qweight.clone(), tensors[name + ".qzeros"].clone()
        layer.scales, layer.g_idx = scales.to(torch.float32), tensors[name + ".g_idx"].clone()
        if config.get("checkpoint_format", config.get("format", "gptq")) == "gptq":
            convert_gptq_v1_to_v2_format_module(layer, bits=config["bits"], pack_dtype=torch.int32)
        layer.post_init()
        out[name + ".weight"] = layer.dequantize_weight().to(torch.float32).T.contiguous()
    return out


def dequantize_auto_round_gptq(tensors, config):
    config = dict(config, desc_act=False)
    for name in [n[:-len(".qweight")] for n in tensors if n.endswith(".qweight")]:
        k = tensors[name + ".qweight"].shape[0] * 32 // config["bits"]
        tensors.setdefault(name + ".g_idx", torch.arange(k, dtype=torch.int32) // config["group_size"])
    return dequantize_gptq(tensors, config)


def dequantize_awq(tensors, config):
    from gptqmodel.quantization.awq.utils.packing_utils import dequantize_gemm
    out = {}
    for name in [n[:-len(".qweight")] for n in tensors if n.endswith(".qweight")]:
        weight = dequantize_gemm(tensors[name + ".qweight"], tensors[name + ".qzeros"],
                                 tensors[name + ".scales"].to(torch.float32), 4, config["group_size"])
        out[name + ".weight"] = weight.to(torch.float32).T.contiguous()
    return out


def dequantize_bitsandbytes(tensors, config):
    import bitsandbytes.functional as F
    out = {}
    for name in [n for n in tensors if n.endswith(".weight")]:
        beside = {n[len(name) + 1:]: t for n, t in tensors.items() if n.startswith(name + ".")}
        if beside:
            state = F.QuantState.from_dict(beside, device="cpu")
            state.dtype = torch.float32
            out[name] = F.dequantize_4bit(tensors[name], state)
        elif tensors[name].dtype == torch.int8:
            # value * (SCB / 127). bitsandbytes' own function rounds value * SCB first, and is one unit in the last
            # place away at most.
            scb = tensors[name[:-len("weight")] + "SCB"]
            out[name] = tensors[name].to(torch.float32) * (scb / 127).unsqueeze(1)
            theirs = F.int8_vectorwise_dequant(tensors[name], scb)
            assert torch.all((out[name] - theirs).abs() <= 2.0 ** -23 * theirs.abs()), name
    return out


def dequantize_fp8(tensors, config):
    out = {}
    for name in [n for n in tensors if n.endswith(".weight") and tensors[n].dtype == torch.float8_e4m3fn]:
        weight = tensors[name].to(torch.float32)
        scale = tensors.get(name + "_scale_inv", tensors.get(name + "_scale")).to(torch.float32)
        if "weight_block_size" in config:
            scale = scale.repeat_interleave(128, 0)[:weight.shape[0]].repeat_interleave(128, 1)[:, :weight.shape[1]]
        out[name] = weight * scale
    return out


def dequantize_mxfp4(tensors, config):
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors
    out = {}
    for name in [n[:-len("_blocks")] for n in tensors if n.endswith("_blocks")]:
        weight = convert_moe_packed_tensors(tensors[name + "_blocks"], tensors[name + "_scales"], dtype=torch.float32)
        out[name] = weight.transpose(1, 2).contiguous()  # as a linear layer has it
    return out


# name: (writer, its arguments, dequantizer, what celer holds the matrices as). int4-row: one scale to a row, which int4 has
# in the largest of its groups that divide the row.
CHECKPOINTS = {
    "ct-w4a16": (compressed_tensors, dict(config_groups=group(4, 32)), dequantize_compressed, "int4-g32"),
    "ct-w4a16-g128": (compressed_tensors, dict(scheme="W4A16", hidden=128, intermediate=128), dequantize_compressed,
                      "int4-g128"),
    "ct-w4a16-asym": (compressed_tensors, dict(config_groups=group(4, 32, False)), dequantize_compressed, "int8-g32"),
    "ct-w4a16-channel": (compressed_tensors, dict(config_groups=group(4, None)), dequantize_compressed, "int4-row"),
    "ct-w4a16-gptq": (compressed_tensors, dict(config_groups=group(4, 32), gptq=dict(actorder="weight")),
                      dequantize_compressed, "int4-g32"),
    "ct-w8a16": (compressed_tensors, dict(config_groups=group(8, 32)), dequantize_compressed, "int8-g32"),
    "ct-w8a8": (compressed_tensors, dict(scheme="W8A8"), dequantize_compressed, "int8"),
    "ct-w3a16": (compressed_tensors, dict(config_groups=group(3, 32)), dequantize_compressed, "int4-g32"),
    "ct-fp8-dynamic": (compressed_tensors, dict(scheme="FP8_DYNAMIC"), dequantize_compressed, "f32"),
    "ct-fp8-block": (compressed_tensors, dict(scheme="FP8_BLOCK", hidden=128, intermediate=256), dequantize_compressed,
                     "f32"),
    "ct-mxfp4": (compressed_tensors, dict(scheme="MXFP4A16"), dequantize_compressed, "mxfp4"),
    "ct-nvfp4": (compressed_tensors, dict(scheme="NVFP4A16"), dequantize_compressed, "int8-g16"),
    "gptq": (gptqmodel, dict(), dequantize_gptq, "int4-g32"),
    "gptq-v2": (gptqmodel, dict(fmt="gptq_v2"), dequantize_gptq, "int4-g32"),
    "gptq-asym": (gptqmodel, dict(sym=False, size=64, intermediate=128), dequantize_gptq, "int8-g64"),
    "gptq-v2-asym": (gptqmodel, dict(sym=False, fmt="gptq_v2"), dequantize_gptq, "int8-g32"),
    "gptq-actorder": (gptqmodel, dict(desc_act=True), dequantize_gptq, "f32"),
    "gptq-g128": (gptqmodel, dict(size=128, hidden=128, intermediate=128), dequantize_gptq, "int4-g128"),
    "gptq-row": (gptqmodel, dict(size=-1), dequantize_gptq, "int4-row"),
    "gptq-8bit": (gptqmodel, dict(bits=8), dequantize_gptq, "int8-g32"),
    "gptq-3bit": (gptqmodel, dict(bits=3), dequantize_gptq, "int4-g32"),
    "awq": (auto_round, dict(fmt="auto_awq"), dequantize_awq, "int8-g32"),
    "awq-sym": (auto_round, dict(fmt="auto_awq", sym=True), dequantize_awq, "int4-g32"),
    "auto-round-gptq": (auto_round, dict(fmt="auto_gptq", sym=True), dequantize_auto_round_gptq, "int4-g32"),
    "bnb-nf4": (bitsandbytes, dict(load_in_4bit=True, bnb_4bit_quant_type="nf4"), dequantize_bitsandbytes, "f32"),
    "bnb-nf4-double": (bitsandbytes, dict(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True),
                       dequantize_bitsandbytes, "f32"),
    "bnb-int8": (bitsandbytes, dict(load_in_8bit=True), dequantize_bitsandbytes, "int8"),
    "fp8-block": (fp8_of_blocks, dict(source="FP8_BLOCK", scale=".weight_scale_inv"), dequantize_fp8, "f32"),
    "fp8-row": (fp8_of_blocks, dict(source="FP8_DYNAMIC", scale=".weight_scale"), dequantize_fp8, "f32"),
    "mxfp4-gpt-oss": (mxfp4_blocks, dict(), dequantize_mxfp4, "mxfp4"),
}


def reference_logits(config, tensors, dequantized):
    """transformers in f32, with the dequantized weights in their places."""
    plain = {k: v for k, v in config.items() if k not in ("quantization_config", "dtype", "torch_dtype")}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**plain)).to(torch.float32).eval()
    state = {}
    for name, parameter in model.state_dict().items():
        source = dequantized.get(name, tensors.get(name))
        if source is None and name == "lm_head.weight":
            source = tensors["model.embed_tokens.weight"]
        assert source is not None and source.shape == parameter.shape, name
        state[name] = source.to(torch.float32)
    model.load_state_dict(state)
    with torch.no_grad():
        return model(torch.tensor([PROMPT])).logits[0].contiguous()


def digest(weight):
    return hashlib.sha256((weight.to(torch.float32) + 0.0).contiguous().numpy().astype("<f4").tobytes()).hexdigest()


def make(name, out):
    writer, arguments, dequantizer, held = CHECKPOINTS[name]
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        writer(work / "made", work, **arguments)
        folder = out / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        made = next((work / "made").rglob("config.json")).parent  # auto-round makes a folder in the folder
        for file in ("config.json", "model.safetensors"):
            shutil.copyfile(made / file, folder / file)
    config = json.loads((folder / "config.json").read_text())
    with safe_open(folder / "model.safetensors", "pt") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}
    dequantized = dequantizer(dict(tensors), config["quantization_config"])
    assert dequantized, name
    def held_as(weight):
        if held == "int4-row":
            return f"int4-g{next(g for g in (128, 64, 32) if weight.shape[1] % g == 0)}"
        return "int8" if held == f"int8-g{weight.shape[-1]}" else held  # a group that is the row

    golden = {"held": {key: held_as(w) for key, w in sorted(dequantized.items())},
              "sha256": {key: digest(w) for key, w in sorted(dequantized.items())}}
    if config["model_type"] == "llama":
        golden["prompt"] = PROMPT
        logits = reference_logits(config, tensors, dequantized)
        save_file({"prompt_logits": logits}, folder / "golden.safetensors")
        golden["max_logit"] = round(float(logits.abs().max()), 4)
    (folder / "golden.json").write_text(json.dumps(golden, indent=1) + "\n")
    print(name, sum(f.stat().st_size for f in folder.iterdir()) // 1024, "KiB", golden.get("max_logit"), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--only", default="", help="only names that begin so")
    args = parser.parse_args()
    failed = []
    for name in CHECKPOINTS:
        if name.startswith(args.only):
            try:
                make(name, args.out)
            except Exception:  # the others are still worth having
                traceback.print_exc()
                failed.append(name)
    if failed:
        raise SystemExit(f"not made: {', '.join(failed)}")


if __name__ == "__main__":
    main()
