#!/usr/bin/env python3
"""What the Python package costs over the program, in runs that alternate; medians.

  python bench/peers/bench_python.py build/celer session          a call of InferenceSession on a network of one product, 16 x 8,
                                                                  beside ONNX Runtime's and the C++ session
  python bench/peers/bench_python.py build/celer batch [MODEL]    64 prompts: LLM.generate beside `celer batch`; --device cuda for a GPU
  python bench/peers/bench_python.py build/celer thread [MODEL]   a loop of Python alone, and beside generate() on another core

Needs the package celer; session also onnx and onnxruntime. MODEL is smollm2 unless given.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time

PROMPTS = 64


def waited_for_a_core():
    """Of this thread, in seconds: on a busy machine what others took from it."""
    with open("/proc/thread-self/schedstat", encoding="ascii") as file:
        return int(file.read().split()[1]) / 1e9


def prompts():
    subjects = ["rain", "iron", "music", "the moon", "bread", "a river", "glass", "honey"]
    questions = ["Where does {} come from", "What is {} made of", "Who needs {}", "How old is {}",
                 "Why do people like {}", "When was {} first described", "Tell a story about {}", "List three facts about {}"]
    return [f"{i}. {question.format(subject)}?" for i, (question, subject) in enumerate((q, s) for q in questions for s in subjects)]


def generate(args):
    """One process: new tokens per second of one call."""
    import celer
    llm = celer.LLM(args.model, max_model_len=512, threads=args.threads, max_num_seqs=PROMPTS, device=args.device)
    params = celer.SamplingParams(temperature=0, max_tokens=args.tokens, ignore_eos=True)
    began = time.perf_counter()
    outputs = llm.generate(prompts(), params, use_tqdm=False)
    seconds = time.perf_counter() - began
    print(json.dumps(sum(len(one.outputs[0].token_ids) for one in outputs) / seconds))


def batch(args):
    with tempfile.TemporaryDirectory() as folder:
        lines = pathlib.Path(folder) / "in.jsonl"
        lines.write_text("".join(json.dumps({"id": str(i), "prompt": text, "max_tokens": args.tokens, "temperature": 0, "ignore_eos": True}) + "\n"
                                 for i, text in enumerate(prompts())))
        program = [args.celer, "batch", args.model, lines, "-o", f"{folder}/out.jsonl", "--restart", "--json", "--context", "512",
                   "--device", args.device, "--threads", str(args.threads), "--window", str(PROMPTS)]
        package = [sys.executable, __file__, args.celer, "generate", args.model, "--threads", str(args.threads),
                   "--device", args.device, "--tokens", str(args.tokens)]

        def run(command):
            done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
            if done.returncode != 0:
                sys.exit(done.stderr)
            return json.loads(done.stdout)
        ours, theirs = [], []
        for _ in range(args.runs):
            said = run(program)
            assert said["completion_tokens"] == PROMPTS * args.tokens, said
            theirs.append(said["completion_tokens_per_s"])
            ours.append(run(package))
            print(f"  {ours[-1]:.1f} {theirs[-1]:.1f}", flush=True)
    mine, yours = statistics.median(ours), statistics.median(theirs)
    print(f"LLM.generate {mine:.1f} tok/s ({min(ours):.1f} to {max(ours):.1f}), celer batch {yours:.1f} ({min(theirs):.1f} to "
          f"{max(theirs):.1f}): {mine / yours:.3f}")


def session(args):
    import numpy as np
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    import celer
    random = np.random.default_rng(1)
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8])],
                              [numpy_helper.from_array(random.standard_normal((16, 8), np.float32), "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()

    def options(kind):
        made = kind.SessionOptions()
        made.intra_op_num_threads = 1
        return made
    feed = {"x": random.standard_normal((1, 16), np.float32)}
    sessions = [celer.InferenceSession(model, options(celer)), onnxruntime.InferenceSession(model, options(onnxruntime))]
    binding = sessions[0].io_binding()
    binding.bind_cpu_input("x", feed["x"])
    binding.bind_ortvalue_output("y", celer.OrtValue(np.empty((1, 8), np.float32)))
    calls = [("InferenceSession.run", lambda: sessions[0].run(None, feed)), ("with io_binding", binding.run),
             ("ONNX Runtime", lambda: sessions[1].run(None, feed))]
    found = {name: [] for name, _ in calls}
    found["C++ session"] = []
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "net.onnx"
        path.write_bytes(model)
        for _ in range(args.runs):
            for name, call in calls:
                began = time.perf_counter()
                for _ in range(5000):
                    call()
                found[name].append((time.perf_counter() - began) / 5000)
            said = subprocess.run([str(args.celer), "graph", "bench", str(path), "--json", "--threads", "1", "--repeat", "5000"],
                                  capture_output=True, text=True, check=True)
            found["C++ session"].append(json.loads(said.stdout)["times"][0]["median_seconds"])
    for name, seconds in found.items():
        print(f"{name:22} {1e6 * statistics.median(seconds):5.1f} us ({1e6 * min(seconds):.1f} to {1e6 * max(seconds):.1f})")


def thread(args):
    import celer
    llm = celer.LLM(args.model, max_model_len=512, threads=1)
    params = celer.SamplingParams(temperature=0, max_tokens=48, ignore_eos=True)

    def speed(work):
        rounds, until = [], threading.Event()

        def count():
            n, began, waited = 0, time.perf_counter(), waited_for_a_core()
            while not until.is_set():
                n += 1
            rounds.append(n / (time.perf_counter() - began - (waited_for_a_core() - waited)))
        other = threading.Thread(target=count)
        other.start()
        began = time.perf_counter()
        work()
        seconds = time.perf_counter() - began
        until.set()
        other.join()
        return rounds[0], seconds

    def run():
        llm.generate(prompts()[:8], params, use_tqdm=False)
    began = time.perf_counter()
    run()
    alone_s = time.perf_counter() - began
    alone, beside, took = [], [], []
    for _ in range(args.runs):
        alone.append(speed(lambda: time.sleep(alone_s))[0])
        rounds, seconds = speed(run)
        beside.append(rounds)
        took.append(seconds)
    print(f"a loop of Python: {statistics.median(alone) / 1e6:.1f} million rounds a second alone, {statistics.median(beside) / 1e6:.1f} beside "
          f"generate(): {statistics.median(beside) / statistics.median(alone):.3f}; generate() {statistics.median(took):.2f} s beside it, {alone_s:.2f} s alone")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("celer", type=pathlib.Path)
    parser.add_argument("what", choices=["session", "batch", "thread", "generate"])
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--threads", type=int, default=2, help="of batch")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--device", default="cpu", help="of batch")
    parser.add_argument("--tokens", type=int, default=64, help="of an answer of batch; 512 with its prompt at most")
    args = parser.parse_args()
    globals()[args.what](args)


if __name__ == "__main__":
    main()
