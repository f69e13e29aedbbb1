#!/usr/bin/env python3
"""One network in one runtime, as a process of bench_graphs.py: says how long loading and the first run took, and then runs
once for every line on stdin. Every answer is one line of JSON.

  python graph_peer.py onnxruntime model.onnx --threads 2 --input x=x.npy [--output OUT.npz]
"""
import argparse
import json
import sys
import time

import numpy as np


def onnxruntime(args, inputs):
    import onnxruntime as ort
    options = ort.SessionOptions()
    options.intra_op_num_threads = args.threads
    options.inter_op_num_threads = 1
    session = ort.InferenceSession(args.model, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda: dict(zip(names, session.run(names, inputs)))


def openvino(args, inputs):
    import openvino
    core = openvino.Core()
    model = core.read_model(args.model)
    model.reshape({name: list(value.shape) for name, value in inputs.items()})
    hints = {"INFERENCE_NUM_THREADS": args.threads, "INFERENCE_PRECISION_HINT": "f32", "NUM_STREAMS": 1}
    compiled = core.compile_model(model, "CPU", hints)
    request = compiled.create_infer_request()
    return lambda: request.infer(inputs)


def ncnn(args, inputs):
    import ncnn as runtime
    net = runtime.Net()
    net.opt.num_threads = args.threads
    net.opt.use_fp16_packed = net.opt.use_fp16_storage = net.opt.use_fp16_arithmetic = False
    net.opt.use_bf16_storage = False
    if net.load_param(args.model) != 0 or net.load_model(args.model.replace(".param", ".bin")) != 0:
        raise RuntimeError("it does not load")
    held = [np.ascontiguousarray(value[0] if value.dtype == np.float32 else value[0].astype(np.int32)) for value in inputs.values()]

    def run():
        extractor = net.create_extractor()
        for i, value in enumerate(held):
            extractor.input(f"in{i}", runtime.Mat(value))
        code, out = extractor.extract("out0")
        if code != 0:
            raise RuntimeError(f"it does not run: {code}")
        return {"out0": np.array(out)}
    return run


def mnn(args, inputs):
    import MNN
    net = MNN.Interpreter(args.model)
    session = net.createSession({"backend": "CPU", "numThread": args.threads, "precision": "normal"})
    tensors = net.getSessionInputAll(session)
    held = []
    for name, value in inputs.items():
        kind = MNN.Halide_Type_Float if value.dtype == np.float32 else MNN.Halide_Type_Int
        value = value if value.dtype == np.float32 else value.astype(np.int32)
        net.resizeTensor(tensors[name], tuple(value.shape))
        held.append((name, MNN.Tensor(tuple(value.shape), kind, np.ascontiguousarray(value), MNN.Tensor_DimensionType_Caffe)))
    net.resizeSession(session)

    def run():
        for name, tensor in held:
            tensors[name].copyFrom(tensor)
        net.runSession(session)
        out = net.getSessionOutput(session)
        return {"out": np.array(out.getNumpyData())}
    return run


def torch(args, inputs):
    import torch as runtime
    runtime.set_num_threads(args.threads)
    runtime.set_grad_enabled(False)
    model = runtime.jit.optimize_for_inference(runtime.jit.freeze(runtime.jit.load(args.model).eval()))
    held = [runtime.from_numpy(value) for value in inputs.values()]

    def run():
        made = model(*held)
        return {str(i): value.numpy() for i, value in enumerate(made if isinstance(made, tuple) else (made,))}
    return run


RUNTIMES = {"onnxruntime": onnxruntime, "openvino": openvino, "ncnn": ncnn, "mnn": mnn, "torch": torch}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("runtime", choices=RUNTIMES)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--input", action="append", default=[])
    parser.add_argument("--output")
    args = parser.parse_args()
    inputs = {name: np.load(path) for name, path in (word.split("=", 1) for word in args.input)}
    begin = time.perf_counter()
    run = RUNTIMES[args.runtime](args, inputs)
    loaded = time.perf_counter()
    outputs = run()
    first = time.perf_counter()
    if args.output:
        np.savez(args.output, **{str(name): value for name, value in outputs.items()})
    print(json.dumps({"load_ms": (loaded - begin) * 1e3, "first_ms": (first - begin) * 1e3}), flush=True)
    for _ in sys.stdin:
        begin, cpu = time.perf_counter(), time.process_time()
        run()
        print(json.dumps({"ms": (time.perf_counter() - begin) * 1e3, "cpu_ms": (time.process_time() - cpu) * 1e3}), flush=True)


main()
