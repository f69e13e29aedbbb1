#!/usr/bin/env python3
"""celer convert: convert_test.py celer_config_logits CELER

Every tiny model of tests/golden goes to GGUF and back to a folder: both give the reference's logits, and the folder has the tensors of
the first one bit for bit. What GGUF cannot say is refused in a sentence. Tokenizers come back as they were; llama2.c files hold the
same model.
"""
import json
import os
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import tempfile

RUNNER, CELER = sys.argv[1:3]
MODELS = pathlib.Path(__file__).resolve().parents[1] / "golden" / "models"
EXACT = dict(os.environ, CELER_FORCE="matmul:portable")
failures = []

# What GGUF has no words for, as tests/golden draws it; the published models are within the constants that its readers take.
UNSAID = {
    "llama_dynamic": "scaling of rope", "gpt_oss": "rounding of YaRN's ramp", "minicpm3": "scale of the embedding",
    "gemma2": "scale of the attention scores", "cohere2": "window of layer 1", "llama4": "growth of the queries",
    "gemma3": "scale of the attention scores", "qwen2_window": "window of layer 0", "smollm3": "window of layer 0",
}
NO_GGUF = {"gptj", "opt", "phimoe"}
# Norms or biases that their architecture in GGUF has no tensors for, or layers that its readers take to be alike.
NOT_WHOLE = {"bamba": "another model", "phi2": "norm of q and k", "qwen2_moe": "shared expert"}


def check(ok, text):
    if not ok:
        failures.append(text)


def celer(*args, code=0):
    done = subprocess.run([CELER, *map(str, args)], capture_output=True, text=True, timeout=300, env=EXACT)
    check(done.returncode == code, f"celer {' '.join(map(str, args))}: exit code {done.returncode}, expected {code}: {done.stderr}")
    return done


def tensors_of(path):
    """name: (type, shape, bytes)"""
    out = {}
    for file in [path] if path.is_file() else sorted(path.glob("model*.safetensors")):
        data = file.read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        for name, entry in json.loads(data[8:8 + size]).items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                out[name] = (entry["dtype"], entry["shape"], data[8 + size + begin:8 + size + end])
    return out


def floats(data):
    return struct.unpack(f"<{len(data) // 4}f", data)


class Runner:
    def __init__(self):
        self.process = subprocess.Popen([RUNNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=EXACT)

    def logits(self, model, tokens):
        self.process.stdin.write(json.dumps({"model": str(model), "tokens": tokens}) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def check_logits(runner, name, what, path):
    """Within 1e-4 of the greatest logit of the reference."""
    golden = json.loads((MODELS / name / "golden.json").read_text())
    expected = floats(tensors_of(MODELS / name / "golden.safetensors")["prompt_logits"][2])
    answer = runner.logits(path, golden["prompt"])
    if "error" in answer:
        return check(False, f"{name}: {what}: {answer['error']}")
    most = max(map(abs, expected))
    worst = max(abs(a - b) for a, b in zip(answer["logits"], expected))
    check(len(answer["logits"]) == len(expected) and worst <= 1e-4 * most, f"{name}: {what}: logits differ by {worst / most:.2g}")


def check_same_tensors(name, before, after):
    layers = json.loads((MODELS / name / "config.json").read_text()).get("num_hidden_layers", 1 << 30)
    behind = [tensor for tensor in before if tensor.startswith("model.layers.") and int(tensor.split(".")[2]) >= layers]
    missing = sorted(set(before) - set(after) - set(behind))  # layers for multi-token prediction are left out
    check(not missing, f"{name}: the folder that came back lacks {missing[:4]}")
    for tensor in sorted(set(before) & set(after)):
        check(before[tensor] == after[tensor], f"{name}: {tensor} came back as {after[tensor][:2]}, was {before[tensor][:2]}")


def round_trip(runner, name, work):
    gguf, back = work / f"{name}.gguf", work / name
    if name in NO_GGUF:
        check("no architecture in GGUF" in celer("convert", MODELS / name, "-o", gguf, code=2).stderr, f"{name}: no sentence")
        return
    if name in UNSAID:
        said = celer("convert", MODELS / name, "-o", gguf, code=2).stderr
        check(UNSAID[name] in said, f"{name}: {said}")
        check(not gguf.exists(), f"{name}: a refused conversion left a file")
        check(UNSAID[name] in celer("convert", MODELS / name, "-o", gguf, "--lossy").stderr, f"{name}: no warning")
        return
    if name in NOT_WHOLE:
        said = celer("convert", MODELS / name, "-o", gguf, code=2).stderr
        check(NOT_WHOLE[name] in said, f"{name}: {said}")
        return
    celer("convert", MODELS / name, "-o", gguf)
    check_logits(runner, name, "GGUF", gguf)
    celer("convert", gguf, "-o", back)
    check_logits(runner, name, "folder", back)
    check_same_tensors(name, tensors_of(MODELS / name), tensors_of(back))


def types(work):
    """f32, f16 and bf16 hold the tiny models' weights, so that all of them come back; the others lose something."""
    before = tensors_of(MODELS / "llama3")
    for weights in ("f32", "f16", "bf16"):
        celer("convert", MODELS / "llama3", "-o", work / "t.gguf", "--weights", weights, "--force")
        for back in ("f32", "f16", "bf16"):
            folder = work / f"{weights}-{back}"
            celer("convert", work / "t.gguf", "-o", folder, "--weights", back)
            after = tensors_of(folder)
            check({entry[0] for entry in after.values()} == {back.upper()}, f"types of {folder.name}")
            if back == "bf16":
                check_same_tensors("llama3", before, after)
    celer("synth", "qwen3-0.6b", "--layers", 2, "--hidden", 256, "--intermediate", 512, "--vocab", 300, "--weights", "bf16", "-o", work / "s")
    celer("convert", work / "s", "-o", work / "s.gguf", "--weights", "q4_k_m")
    said = celer("inspect", work / "s.gguf").stdout
    check("q4_k" in said.lower() and "q6_k" in said.lower(), f"--weights q4_k_m: {said[-400:]}")
    celer("convert", work / "s.gguf", "-o", work / "s-back", "--weights", "f32")
    check(len(tensors_of(work / "s-back")) == len(tensors_of(work / "s")), "q4_k_m: other tensors came back")
    said = celer("convert", work / "s", "-o", work / "x.gguf", "--weights", "int4", code=2).stderr
    check("holds no such integers" in said, said)
    said = celer("convert", work / "s.gguf", "-o", work / "x", "--weights", "q8_0", code=2).stderr
    check("a folder gets f32, f16 or bf16" in said, said)


def llama2c(runner, work):
    """tests/golden's files were written by llama2.c's own export."""
    source = MODELS / "tinyllama"
    config = json.loads((source / "config.json").read_text())
    for version in (0, 1):
        celer("convert", source, "-o", work / "l.bin", "--llama2c-version", version, "--force")
        check_logits(runner, "tinyllama", f"llama2.c version {version}", work / "l.bin")
    celer("convert", source, "-o", work / "l.gguf")
    celer("convert", work / "l.gguf", "-o", work / "g.bin", "--llama2c-version", 1)
    check((work / "g.bin").read_bytes() == (work / "l.bin").read_bytes(), "the .bin of a GGUF file is another one than the folder's")
    celer("convert", MODELS / "llama2", "-o", work / "q.bin", "--llama2c-version", 2)
    own = (MODELS.parent / "llama2c" / "llama2-v2-int8.bin").read_bytes()
    check((work / "q.bin").read_bytes() == own, f"version 2 is not what llama2.c's export writes ({config['hidden_size']} columns)")
    for name, why in (("llama3", "theta 500000"), ("qwen3", "not like Llama"), ("llama_bias", "biases"), ("llama_linear", "rope is scaled")):
        said = celer("convert", MODELS / name, "-o", work / "no.bin", code=2).stderr
        check(why in said and "llama2.c" in said, f"{name}: {said}")
    said = celer("convert", source, "-o", work / "no.bin", "--weights", "f16", code=2).stderr
    check("--llama2c-version" in said, said)


TEXTS = ["", "hello world", "  two  spaces and\nlines\n\n", "it's 12345 o'clock", "Gr\u00fc\u00dfe \u4e16\u754c \U0001f600", "<s>special</s> x"]


def ids_of(model, text):
    done = celer("tokenize", model, text, "--json")
    return json.loads(done.stdout)["ids"] if done.returncode == 0 else done.stderr


def tokenizers(work):
    """Vocabularies trained here, in a folder, in GGUF and in the folder that comes back."""
    try:
        from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    except ImportError as error:
        return print(f"tokenizers not compared: {error}")
    random.seed(3)
    corpus = [" ".join(random.choice(["hello", "world", "low", "lower", "spaces", "lines", "clock", "special", "it's"]) for _ in range(40)) for _ in range(50)]
    special = ["<unk>", "<s>", "</s>"]
    byte_level = Tokenizer(models.BPE())
    byte_level.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    byte_level.decoder = decoders.ByteLevel()
    byte_level.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=290, special_tokens=special, show_progress=False,
                                                                 initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    pieces = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    pieces.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    pieces.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    pieces.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=299, show_progress=False,
                                                              special_tokens=special + [f"<0x{i:02X}>" for i in range(256)]))
    for kind, tokenizer in (("bytes", byte_level), ("pieces", pieces)):
        folder = work / f"of-{kind}"
        celer("synth", "llama-2-7b", "--layers", 1, "--hidden", 32, "--intermediate", 32, "--heads", 2, "--kv-heads", 2, "--head-dim", 16, "--vocab", 300,
              "--weights", "f32", "-o", folder)
        written = json.loads(tokenizer.to_str())
        for token in written["added_tokens"]:
            token["special"] = token["content"] in special
        written["added_tokens"] = [token for token in written["added_tokens"] if token["special"]]
        (folder / "tokenizer.json").write_text(json.dumps(written))
        (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}))
        (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
        gguf, back = work / f"{kind}.gguf", work / f"back-{kind}"
        celer("convert", folder, "-o", gguf)
        celer("convert", gguf, "-o", back)
        check((back / "chat_template.jinja").read_text() == (folder / "chat_template.jinja").read_text(), f"{kind}: the chat template is another one")
        theirs = Tokenizer.from_file(str(back / "tokenizer.json"))
        for text in TEXTS:
            expected = ids_of(folder, text)
            check(ids_of(gguf, text) == expected, f"{kind}: GGUF gives other ids for {text!r}")
            check(ids_of(back, text) == expected, f"{kind}: the folder that came back gives other ids for {text!r}")
            check(theirs.encode(text).ids == expected, f"{kind}: tokenizers gives other ids for {text!r}: {theirs.encode(text).ids}, {expected}")


def refusals(work):
    model = MODELS / "llama3"

    def refused(what, *args, code=2):
        done = celer("convert", *args, code=code)
        said = done.stderr.strip()
        check(what in said and said.startswith("error: ") and "\n" not in said.replace("\n  ", " "), f"{args[1:]}: {said}")

    (work / "there.gguf").write_text("mine")
    refused("--force", model, "-o", work / "there.gguf", code=2)
    check((work / "there.gguf").read_text() == "mine", "a file that was there is another one")
    (work / "folder").mkdir()
    refused("is there already", work / "t.gguf", "-o", work / "folder", code=2)
    refused("is a GGUF file already", work / "t.gguf", "-o", work / "u.gguf")
    refused("is a Hugging Face folder already", model, "-o", work / "u")
    refused("is the model itself", work / "t.gguf", "-o", work / "t.gguf", code=2)
    refused("no such", work / "nothing", "-o", work / "u.gguf")
    data = (work / "t.gguf").read_bytes()
    for length in (0, 20, len(data) // 2, len(data) - 1):
        (work / "cut.gguf").write_bytes(data[:length])
        refused("cut.gguf", work / "cut.gguf", "-o", work / "u")
    shutil.copytree(model, work / "cut")
    shard = next((work / "cut").glob("model-00002*"))
    shard.write_bytes(shard.read_bytes()[:-9])
    refused("model-00002", work / "cut", "-o", work / "u.gguf")
    lies(model, work, refused)
    for name in ("u", "u.gguf"):
        check(not (work / name).exists(), f"{name} is there after a refusal")
    refused("is empty", model, "-o", "")
    os.mkfifo(work / "pipe.gguf")
    refused("is a pipe", model, "-o", work / "pipe.gguf")
    if pathlib.Path("/dev/full").exists():
        refused("No space left", model, "-o", link_to(work / "full.gguf", "/dev/full"), code=1)


def lies(model, work, refused):
    """Fields that nothing reads to run the model, and that say nonsense."""
    shutil.copytree(model, work / "lies")
    config = json.loads((model / "config.json").read_text())

    def write(name, **fields):
        (work / "lies" / name).write_text(json.dumps((config if name == "config.json" else {}) | fields))

    for theta in (-1, 0, "x"):
        write("config.json", rope_theta=theta)
        refused("theta", work / "lies", "-o", work / "u.gguf")
    write("config.json")
    for name in ("config.json", "generation_config.json"):
        for key, value in (("bos_token_id", 48), ("bos_token_id", -1), ("eos_token_id", [2, 1 << 40]), ("pad_token_id", -2), ("eos_token_id", "2")):
            write(name, **{key: value})
            refused(key, work / "lies", "-o", work / "u.gguf")
        celer("convert", work / "lies", "-o", work / "weights.gguf", "--no-tokenizer", "--force")
        write(name, pad_token_id=-1, bos_token_id=None, eos_token_id=[2, 47])
        celer("convert", work / "lies", "-o", work / "weights.gguf", "--force")
        write(name)


def link_to(path, target):
    path.symlink_to(target)
    return path


def main():
    runner = Runner()
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        for model in sorted(MODELS.iterdir()):
            round_trip(runner, model.name, work)
        types(work)
        llama2c(runner, work)
        tokenizers(work)
        refusals(work)
    if failures:
        sys.exit("\n".join(failures))


if __name__ == "__main__":
    main()
