#!/usr/bin/env python3
"""Networks that ONNX Runtime's tools rewrote: optimized_test.py CELER [NAME]

The small networks of tests/golden/networks, saved by its optimizer (ORT_ENABLE_EXTENDED), quantized dynamically, statically
with operators on bytes (QOperator), and to weights of 4 bits (MatMulNBits); each run by celer and by ONNX Runtime."""
import logging
import pathlib
import sys
import tempfile
import warnings

import numpy as np
import onnx
import onnxruntime as ort

import beside_ort

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)
from onnxruntime.quantization import (CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic,  # noqa: E402
                                      quantize_static)

try:
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
except ImportError as missing:
    print(f"skipped: weights of 4 bits: {missing}")
    MatMulNBitsQuantizer = None

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden" / "networks"
PICTURES, TEXTS = ("mobilenet", "resnet", "unet"), ("minilm", "vit")


class Samples(CalibrationDataReader):
    def __init__(self, feeds):
        self.left = list(feeds)

    def get_next(self):
        return self.left.pop() if self.left else None


def feeds_of(path, seed):
    random = np.random.default_rng(seed)
    feeds = {}
    for value in onnx.load(path).graph.input:
        tensor = value.type.tensor_type
        dims = [d.dim_value or 1 for d in tensor.shape.dim]
        kind = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        feeds[value.name] = random.standard_normal(dims).astype(kind) if np.dtype(kind).kind == "f" else \
            random.integers(0, 2, dims).astype(kind)
    return feeds


def optimized(source, target):
    options = ort.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")  # CPUs without VNNI saturate sums of pairs
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(target)
    options.log_severity_level = 4
    ort.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])


def dynamic(source, target):
    quantize_dynamic(source, target, weight_type=QuantType.QInt8)


def dynamic_optimized(source, target):
    between = target.with_suffix(".between.onnx")
    dynamic(source, between)
    optimized(between, target)


def static(source, target):
    quantize_static(source, target, Samples(feeds_of(source, seed) for seed in range(10, 14)), QuantFormat.QOperator,
                    activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8, per_channel=True)


def static_optimized(source, target):
    between = target.with_suffix(".between.onnx")
    static(source, between)
    optimized(between, target)


def four_bits(source, target):
    quantizer = MatMulNBitsQuantizer(onnx.load(source), block_size=32, is_symmetric=False)
    quantizer.process()
    quantizer.model.save_model_to_file(str(target))


# Name, how, networks, and how far apart outputs may be: steps of 8 bits add up.
WAYS = (("optimized", optimized, PICTURES + TEXTS + ("yolo", "mixed"), 1e-4),
        ("dynamic", dynamic, TEXTS, 5e-2), ("dynamic optimized", dynamic_optimized, TEXTS, 5e-2),
        ("static", static, PICTURES, 8e-2), ("static optimized", static_optimized, PICTURES, 8e-2), ("4 bits", four_bits, TEXTS, 1e-3))


def run_ort(path, feeds):
    options = ort.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")  # CPUs without VNNI saturate sums of pairs
    options.log_severity_level = 4
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return dict(zip([x.name for x in session.get_outputs()], session.run(None, feeds)))


def main(celer, only):
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for way, make, networks, tolerance in WAYS:
            for network in networks:
                name = f"{way} {network}"
                if only not in name or (make is four_bits and not MatMulNBitsQuantizer):
                    continue
                source, target = GOLDEN / f"{network}.onnx", pathlib.Path(folder) / f"{way.replace(' ', '_')}_{network}.onnx"
                make(source, target)
                feeds = feeds_of(source, 1)
                theirs = run_ort(target, feeds)
                domains = sorted({n.op_type for n in onnx.load(target).graph.node if n.domain == "com.microsoft"})
                problems = []
                for flags in ([], ["--no-optimize"]):
                    ours = beside_ort.run_celer(celer, target, feeds, *flags)
                    if isinstance(ours, str):
                        problems.append(ours)
                        continue
                    problems += [f"{key}: {p}" for key, value in theirs.items()
                                 if (p := beside_ort.differs(ours[key.replace("/", "_")], value, tolerance, 1))]
                print(f"{name}: {'equal' if not problems else '; '.join(problems)}; {', '.join(domains)}", flush=True)
                wrong += bool(problems)
    print(f"{wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""))
