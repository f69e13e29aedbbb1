#!/usr/bin/env python3
"""What celer convert writes as llama2.c's .bin, in llama2.c itself: run.c (version 0) and runq.c (version 2).

  convert_llama2c.py build/celer build/tests/configs/celer_config_logits llama2.c/

By hand: it compiles run.c and runq.c of a checkout of github.com/karpathy/llama2.c, which has no reader of version 1. For models like
Llama, drawn here and out of tests/golden, as folders and as GGUF: the logits of run.c are within 1e-4 of celer's on the source, and
those of runq.c, which rounds activations to 8 bits as well, within 0.1; greedy texts of run.c with celer's file and
tokenizer.bin go on as celer does.
"""
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

CELER, RUNNER, SOURCE = sys.argv[1:4]
MODELS = pathlib.Path(__file__).resolve().parents[1] / "golden" / "models"
STEPS = 24

DRIVER = """
#define TESTING
#include "%s"
int main(int argc, char** argv) {
  Transformer t;
  build_transformer(&t, argv[1]);
  for (int i = 2; i < argc; ++i) {
    float* logits = forward(&t, atoi(argv[i]), i - 2);
    fwrite(logits, sizeof(float), t.config.vocab_size, stdout);
  }
  return 0;
}
"""


def compiled(work, program):
    out = work / program.removesuffix(".c")
    (work / f"driver_{program}").write_text(DRIVER % (pathlib.Path(SOURCE).resolve() / program))
    subprocess.run(["cc", "-O2", "-w", "-o", f"{out}_logits", work / f"driver_{program}", "-lm"], check=True)
    subprocess.run(["cc", "-O2", "-w", "-o", out, pathlib.Path(SOURCE) / program, "-lm"], check=True)
    return out


def floats(data):
    return struct.unpack(f"<{len(data) // 4}f", data)


def celer(*args):
    subprocess.run([CELER, *map(str, args)], check=True, capture_output=True)


def logits_of_celer(model, tokens):
    done = subprocess.run([RUNNER], input=json.dumps({"model": str(model), "tokens": tokens}) + "\n", capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    assert "error" not in answer, answer
    return answer["logits"]


def apart(expected, got):
    assert len(expected) == len(got), (len(expected), len(got))
    return max(abs(a - b) for a, b in zip(expected, got)) / max(map(abs, expected))


def text_of(program, model, tokenizer, prompt):
    return subprocess.run([program, model, "-z", tokenizer, "-t", "0", "-n", str(STEPS * 4), "-i", prompt], capture_output=True, check=True).stdout


def main():
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        run, runq = compiled(work, "run.c"), compiled(work, "runq.c")
        # Random models beside the golden ones: shapes, keys and values for fewer heads, a head of its own, a real vocabulary.
        shapes = {"grouped": ["--heads", 8, "--kv-heads", 2], "wide": ["--hidden", 256, "--heads", 4, "--kv-heads", 4, "--intermediate", 320],
                  "words": ["--vocab", 32000]}
        sources = {"llama2": MODELS / "llama2", "tinyllama": MODELS / "tinyllama"}
        for name, flags in shapes.items():
            sizes = {"--layers": 2, "--hidden": 64, "--intermediate": 192, "--heads": 4, "--kv-heads": 4, "--vocab": 512} | dict(zip(flags[::2], flags[1::2]))
            sizes["--head-dim"] = sizes["--hidden"] // sizes["--heads"]
            celer("synth", "llama-2-7b", *[part for pair in sizes.items() for part in pair], "--weights", "f32", "-o", work / name)
            config = json.loads((work / name / "config.json").read_text())
            config["rms_norm_eps"] = 1e-5
            (work / name / "config.json").write_text(json.dumps(config))
            if name == "words":
                for file in work.glob("words/tokenizer*"):
                    file.unlink()
                (work / name / "tokenizer.model").write_bytes((pathlib.Path(SOURCE) / "tokenizer.model").read_bytes())
            sources[name] = work / name
        print("| model | source | run.c, version 0 | runq.c, version 2 |\n|---|---|---|---|")
        for name, source in sources.items():
            vocab = json.loads((source / "config.json").read_text())["vocab_size"]
            tokens = [(7 * i * i + 3 * i + 1) % vocab for i in range(STEPS)]
            celer("convert", source, "-o", work / f"{name}.gguf")
            for what in (source, work / f"{name}.gguf"):
                row, expected = [], logits_of_celer(what, tokens)
                for program, version, most in ((run, 0, 1e-4), (runq, 2, 0.1)):
                    out = work / f"v{version}" / "model.bin"
                    out.parent.mkdir(exist_ok=True)
                    celer("convert", what, "-o", out, "--llama2c-version", version, "--force")
                    done = subprocess.run([f"{program}_logits", out, *map(str, tokens)], capture_output=True, check=True)
                    far = apart(expected, floats(done.stdout))
                    failed += far > most
                    row.append(f"{far:.1e}" + ("" if far <= most else " DIFFERS"))
                print(f"| {name} | {'GGUF' if what.suffix else 'folder'} | {row[0]} | {row[1]} |", flush=True)
        # Texts: run.c and its tokenizer.bin against celer, on the model with a vocabulary of words.
        for version in (0, 2):
            (work / f"v{version}" / "tokenizer.bin").unlink(missing_ok=True)
            celer("convert", sources["words"], "-o", work / f"v{version}" / "model.bin", "--llama2c-version", version, "--force")
        own = (pathlib.Path(SOURCE) / "tokenizer.bin").read_bytes()
        written = (work / "v0" / "tokenizer.bin").read_bytes()
        print(f"tokenizer.bin: {'byte for byte' if own == written else 'not'} what llama2.c has")
        failed += own != written
        for prompt in ("Once upon a time", "", "One day, L\u00e9a's 3 dogs"):
            theirs = text_of(run, work / "v0" / "model.bin", pathlib.Path(SOURCE) / "tokenizer.bin", prompt)
            ours = text_of(run, work / "v0" / "model.bin", work / "v0" / "tokenizer.bin", prompt)
            said = subprocess.run([CELER, "run", work / "v0" / "model.bin", "--raw", "-q", "--temperature", "0", "-n", str(STEPS), prompt],
                                  capture_output=True, env={"CELER_FORCE": "matmul:portable"})
            same = theirs == ours and prompt.encode() in theirs
            goes_on = said.stdout.strip() and said.stdout.strip()[:24] in theirs
            print(f"{prompt!r}: run.c says the same with both tokenizers: {same}; celer goes on as run.c does: {bool(goes_on)}")
            failed += not (same and (goes_on or not prompt))
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
