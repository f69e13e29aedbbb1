#!/usr/bin/env python3
"""The GGUF files of draws/ in llama.cpp itself: its log probabilities of the tokens it chooses beside celer's.

  compare_llama_cpp.py --runner build/tests/configs/celer_family_check [--family gemma2,gemma3] [--count 5]

Not in CI. Packages: tools/requirements-golden.txt and xllamacpp, which has llama.cpp as a library. Weights are f32, since
llama.cpp rounds activations to the type of narrower ones. It refuses many shapes that transformers takes.
"""

import argparse
import collections
import json
import math
import multiprocessing
import os
import pathlib
import re
import tempfile

import gguf

import compare_families as families

TOKENS = 16
TOLERANCE = 2e-2  # of a log probability: GELU and SiLU of llama.cpp are tables of f16


def add_vocabulary(size):
    """llama.cpp opens no file without a tokenizer: names for the tokens, none of which ends an answer."""
    write = gguf.GGUFWriter.write_header_to_file

    def with_tokens(writer, *rest, **named):
        if writer.kv_data[0].get("tokenizer.ggml.model") is None:
            writer.add_tokenizer_model("llama")
            writer.add_token_list([b"<unk>"] + [f"<{i}>".encode() for i in range(1, size)])
            writer.add_token_scores([0.0] * size)
            writer.add_token_types([2] + [1] * (size - 1))
            writer.add_bos_token_id(0)
            writer.add_eos_token_id(0)
            writer.add_add_bos_token(False)
        return write(writer, *rest, **named)

    gguf.GGUFWriter.write_header_to_file = with_tokens


def ask_llama_cpp(path, case, size):
    """[(token, {token: log probability})] of its greedy answer"""
    os.environ["GGML_NO_BACKTRACE"] = "1"
    import xllamacpp
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx, params.n_gpu_layers, params.n_parallel = 256, 0, 1
    params.warmup = False
    params.cpuparams.n_threads = 1
    params.verbosity = 3
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        try:
            server = xllamacpp.Server(params)
        except RuntimeError as error:
            said.seek(0)
            found = re.search(r"error loading model: (.*)", said.read().decode(errors="replace"))
            return found[1] if found else str(error)
    answer = server.handle_completions(
        {"prompt": case["tokens"], "max_tokens": TOKENS, "temperature": 0.0, "logprobs": size, "cache_prompt": False,
         "ignore_eos": True, "samplers": ["temperature"]})
    answer = answer if isinstance(answer, dict) else json.loads(answer)
    if "choices" not in answer:
        return str(answer)[:300]
    return [(step["id"], {top["id"]: top["logprob"] for top in step["top_logprobs"]})
            for step in answer["choices"][0]["logprobs"]["content"]]


def log_softmax(row):
    greatest = max(row)
    total = greatest + math.log(sum(math.exp(x - greatest) for x in row))
    return [x - total for x in row]


def judge(case, runner):
    case["dtype"] = "F32"
    size = (case["config"].get("text_config") or case["config"])["vocab_size"]
    families.start(runner, True)
    add_vocabulary(size)
    with tempfile.TemporaryDirectory() as folder:
        try:
            families.fresh_tensors(case)
            path = families.write_case(case, pathlib.Path(folder))
        except Exception as error:
            return "not written", f"{type(error).__name__}: {error}"[:200]
        if path.suffix != ".gguf":
            return "another form", ""
        answer = families.ask(case, path)
        if "error" in answer or "abort" in answer:
            return "refused by celer", families.without_folder(answer.get("error", "abort"), pathlib.Path(folder))
        theirs = ask_llama_cpp(path, case, size)
    if isinstance(theirs, str):
        return "refused by llama.cpp", theirs
    rows = [answer["logits"][i:i + answer["vocab"]] for i in range(0, len(answer["logits"]), answer["vocab"])]
    worst = 0
    for i, (token, top) in enumerate(theirs):
        ours = log_softmax(rows[len(case["tokens"]) - 1 + i])
        worst = max([worst] + [abs(ours[t] - p) for t, p in top.items() if p > -50])
        if i >= len(answer["tokens"]) or token != answer["tokens"][i]:
            break  # from here on the texts differ: near ties
    return ("equal" if worst < TOLERANCE and theirs else "differs"), f"{worst:.1e} over {i + 1} of {len(theirs)} tokens"


def child(case, runner, pipe):
    pipe.send(judge(case, runner))


def apart(case, runner):
    """In a process of its own: what llama.cpp cannot read may end it."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=child, args=(case, runner, theirs))
    process.start()
    theirs.close()
    try:
        got = ours.recv()
    except EOFError:
        got = ("llama.cpp aborted", "")
    process.join(10)
    if process.is_alive():
        process.kill()
    return got


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runner", required=True)
    parser.add_argument("--family", default="")
    parser.add_argument("--count", type=int, default=5)
    args = parser.parse_args()
    families.start(args.runner, True)  # before processes are forked
    chosen = args.family.split(",") if args.family else sorted(families.DRAWS)
    for family in chosen:
        counts, words = collections.Counter(), []
        for number in range(args.count * 12):
            case = families.draw(family, number, 0, TOKENS)
            if not case["form"] or case["refused"]:
                continue
            kind, said = apart(case, args.runner)
            if kind == "another form":
                continue
            counts[kind] += 1
            if kind != "equal":
                words.append(f"    {number} {kind}: {said}")
            if sum(counts.values()) == args.count:
                break
        print(family, ", ".join(f"{kind} {count}" for kind, count in counts.items()) or "no GGUF form", flush=True)
        print(*words, sep="\n", end="\n" if words else "", flush=True)


if __name__ == "__main__":
    main()
