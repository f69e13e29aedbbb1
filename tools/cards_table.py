#!/usr/bin/env python3
"""The table of GPUs that were not measured, for docs/performance.md: cards_table.py build/celer

One sequence, 8-token prompt, 128 new tokens: the limit by the card's data sheet, and what the share of its data sheet that an
H200 was measured at would be there. What others publish stands beside it."""

import json
import subprocess
import sys

CONTEXT = 72  # the middle of what was measured
# Measured on an H200: tok/s by bits of a weight, and what they are called. With its own kernels (docs/performance.md, "CUDA"),
# and with the generic ones, as 8.0 and as 8.6 with its 99 KB (docs/notes/cuda_generic.md).
FORMATS = {16: "bf16", 8: "int8", 4.25: "int4-g128"}
MODELS = {"llama-2-7b": "Llama-2-7B", "llama-3.1-8b": "Llama-3.1-8B"}
MEASURED = {
    "9.0": {"llama-2-7b": {16: 310, 8: 595, 4.25: 870}, "llama-3.1-8b": {16: 277, 8: 531, 4.25: 775}},
    "8.0": {"llama-2-7b": {16: 281, 8: 489, 4.25: 720}, "llama-3.1-8b": {16: 251, 8: 449, 4.25: 643}},
    "8.6": {"llama-3.1-8b": {16: 213, 4.25: 581}},  # the other model is taken to come as near
}
CARDS = {
    "rtx3090": ("RTX 3090", "8.6"), "rtx4090-tensor": ("RTX 4090", "8.6"), "rtx5090": ("RTX 5090", "8.6"), "a10": ("A10", "8.6"),
    "l4": ("L4", "8.6"), "l40s": ("L40S", "8.6"), "a100-80g": ("A100 80 GB SXM", "8.0"), "h100-pcie": ("H100 PCIe", "9.0"),
    "h100-sxm": ("H100 SXM", "9.0")}
# Read in June to August 2026: llama.cpp's discussion 15013 as copied by smoothyy3/willitrun (Llama-2-7B Q4_0), XiongjieDai's
# GPU benchmarks of May 2024 (Llama-3-8B F16 and Q4_K_M), llama.cpp's pull requests 14262 and 15131 of August 2025, the READMEs
# of gpt-fast and MLC. Other formats of as many bits, and other prompts.
PUBLISHED = {
    ("rtx5090", "llama-2-7b", 4.25): "llama.cpp Q4_0 300",
    ("a100-80g", "llama-2-7b", 4.25): "llama.cpp Q4_0 201; gpt-fast int4-g32 197",
    ("a100-80g", "llama-2-7b", 8): "gpt-fast 156",
    ("a100-80g", "llama-2-7b", 16): "gpt-fast 105",
    ("rtx4090-tensor", "llama-2-7b", 4.25): "MLC int4 191",
    ("rtx3090", "llama-3.1-8b", 16): "llama.cpp F16 46.5, later BF16 58.3",
    ("rtx3090", "llama-3.1-8b", 4.25): "llama.cpp Q4_K_M 112, Q4_0 157",
    ("rtx4090-tensor", "llama-3.1-8b", 16): "llama.cpp F16 54.3, later BF16 65.2",
    ("rtx4090-tensor", "llama-3.1-8b", 4.25): "llama.cpp Q4_K_M 128",
    ("l40s", "llama-3.1-8b", 16): "llama.cpp F16 43.4",
    ("l40s", "llama-3.1-8b", 4.25): "llama.cpp Q4_K_M 114",
    ("h100-pcie", "llama-3.1-8b", 16): "llama.cpp F16 67.8",
}


def limits(celer, model, machine):
    """tok/s by bits of a weight; none where it does not fit."""
    bits = ",".join(f"{bits:g}" for bits in FORMATS)
    out = subprocess.run([celer, "limits", "--model", model, "--machine", machine, "--weights-bits", bits, "--kv-bits", "16",
                          "--context", str(CONTEXT), "--json"], check=True, capture_output=True, text=True).stdout
    decode = json.loads(out)["decode"]
    steps = {bits: decode[f"w{bits:g}kv16"]["steps"][0] for bits in FORMATS}
    return {bits: step["tokens_per_s"] if step["fits"] else None for bits, step in steps.items()}


def number(value):
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def main():
    celer = sys.argv[1]
    print("| card | model | | limit, tok/s | expected | published by others |")
    print("|---|---|---|---|---|---|")
    h200 = {model: limits(celer, model, "h200") for model in MODELS}
    for model, title in MODELS.items():
        for card, (name, kernels) in CARDS.items():
            like = model if model in MEASURED[kernels] else "llama-3.1-8b"
            for bits, limit in limits(celer, model, card).items():
                if limit is None:
                    continue
                measured = MEASURED[kernels][like].get(bits)
                expected = number(limit * measured / h200[like][bits]) if measured else "–"
                print(f"| {name} | {title} | {FORMATS[bits]} | {number(limit)} | {expected} | "
                      f"{PUBLISHED.get((card, model, bits), '–')} |")


if __name__ == "__main__":
    main()
