#!/usr/bin/env python3
"""Folders that celer convert makes of GGUF files, in transformers itself: its logits beside those of the folder before.

  convert_transformers.py build/celer [--family llama3,gemma3]

By hand: it needs torch (tools/requirements-golden.txt). Every model of tests/golden goes to GGUF and back to a folder, with --lossy where
GGUF lacks a word for the tiny model. Prints a row of a table for each.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
import transformers

MODELS = pathlib.Path(__file__).resolve().parents[1] / "golden" / "models"
TOLERANCE = 1e-4  # of the greatest logit


def logits(folder, prompt):
    model, loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                                                      experts_implementation="eager", output_loading_info=True)
    wrong = {key: sorted(loaded[key])[:3] for key in ("missing_keys", "unexpected_keys", "mismatched_keys") if loaded.get(key)}
    with torch.no_grad():
        return model.eval()(torch.tensor([prompt])).logits[0], wrong


def judge(celer, name, work):
    notes = []
    for source, out in ((MODELS / name, work / "m.gguf"), (work / "m.gguf", work / "back")):
        done = subprocess.run([celer, "convert", source, "-o", out], capture_output=True, text=True)
        if done.returncode and "--lossy" in done.stderr:
            notes.append("lossy")
            done = subprocess.run([celer, "convert", source, "-o", out, "--lossy"], capture_output=True, text=True)
        if done.returncode:
            return "refused by celer", done.stderr.strip()
    prompt = json.loads((MODELS / name / "golden.json").read_text())["prompt"]
    try:
        expected, _ = logits(MODELS / name, prompt)
    except Exception as error:  # noqa: BLE001 - code that is not in transformers
        return "not in transformers", str(error).split("\n")[0][:100]
    got, wrong = logits(work / "back", prompt)
    far = float((got - expected).abs().max() / expected.abs().max())
    return ("equal" if far < TOLERANCE and not wrong else "lossy, differs" if notes else "differs"), " ".join([f"{far:.1e}", *notes, str(wrong or "")])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("celer")
    parser.add_argument("--family", default="")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    differs = 0
    for name in args.family.split(",") if args.family else sorted(model.name for model in MODELS.iterdir()):
        with tempfile.TemporaryDirectory() as folder:
            try:
                verdict, detail = judge(args.celer, name, pathlib.Path(folder))
            except Exception as error:  # noqa: BLE001
                verdict, detail = "differs", f"transformers: {str(error)[:200]}"
        differs += verdict == "differs"
        print(f"| {name} | {verdict} | {detail.replace(str(MODELS) + '/', '')} |", flush=True)
    sys.exit(differs > 0)


if __name__ == "__main__":
    main()
