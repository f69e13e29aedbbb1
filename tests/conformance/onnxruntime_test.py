#!/usr/bin/env python3
"""Values at the edges, against ONNX Runtime: onnxruntime_test.py CELER [--show]

NaN, infinities, signed zeros and empty tensors through elementwise operators, reductions, sorts and pools; every way of
sampling and resizing on random shapes. Each case is a small model of its own for ONNX Runtime; all of them together are one
for celer. What differs on purpose is in DIFFERS, with the reason."""
import pathlib
import subprocess
import sys
import tempfile

try:
    import numpy as np
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper
except ImportError as error:
    print(f"skipped: {error}; tools/requirements.txt has it")
    sys.exit(77)

NAN, INF = float("nan"), float("inf")
SPECIAL = np.array([0.0, -0.0, 1, -1, 0.5, -0.5, 1.5, 2.5, -2.5, NAN, INF, -INF, 1e-40, -1e-40, 3e38, -3e38, 88.8, -88.8, 1e4, -1e4,
                    7, -3, 0.1], np.float32)
# By the beginning of a case's name: what ONNX leaves open, and what is chosen here.
DIFFERS = {
    "Clip nan": "all of it is NaN, as in numpy; ONNX Runtime has the other bound where its vectors end",
    "Resize 2 nearest half_pixel_symmetric floor sizes": "the place is 1; ONNX Runtime computes 0.99999997 in f32",
    "ReduceMax [": "NaN stays, as in numpy and torch; ONNX Runtime drops it in some rows",
    "ReduceMin [": "likewise",
    "ReduceMean of nothing": "0 / 0 is NaN, as in numpy and torch; ONNX Runtime has 0",
    "ScatterND max": "NaN stays, as in torch",
    "ScatterND min": "NaN stays, as in torch",
    "ScatterElements max": "NaN stays, as in torch",
    "ScatterElements min": "NaN stays, as in torch",
    "GlobalMaxPool": "NaN stays, as in torch; ONNX Runtime drops it on x86",
    "TopK with NaN": "NaN is the largest, as in numpy and torch; ONNX Runtime leaves its place open",
}


class Cases:
    def __init__(self):
        self.list = []

    def add(self, name, op, inputs, outputs=1, opset=21, tolerance=1e-5, **attributes):
        self.list.append(dict(name=name, op=op, inputs=inputs, outputs=outputs, opset=opset, tolerance=tolerance,
                              attributes=attributes))


def elementwise(cases):
    # Odd lengths: vectors and what is left over.
    x = np.concatenate([SPECIAL, SPECIAL[::-1], SPECIAL[:5]])
    empty = np.zeros((0, 3), np.float32)
    for op in ("Abs Acos Acosh Asin Asinh Atan Atanh Ceil Cos Cosh Elu Erf Exp Floor Gelu HardSigmoid HardSwish IsInf IsNaN LeakyRelu "
               "Log Mish Neg Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Tan Tanh "
               "ThresholdedRelu Celu").split():
        big = op in ("Sin", "Cos", "Tan")  # angles of 3e38: every library reduces them in its own way
        if op == "Reciprocal":  # of denormal numbers: by estimates on some machines
            cases.add(op, op, [np.where(np.abs(x) < 1e-30, 0, x).astype(np.float32)])
            continue
        cases.add(f"{op}", op, [np.where(np.abs(x) > 1e5, 2, x).astype(np.float32) if big else x])
        cases.add(f"{op} empty", op, [empty])
        cases.add(f"{op} f64", op, [x.astype(np.float64)], tolerance=1e-9) if op in ("Exp", "Relu", "Sigmoid", "Sqrt") else None
    a, b = SPECIAL.reshape(-1, 1), SPECIAL.reshape(1, -1)
    for op in "Add Sub Mul Div Pow Max Min Equal Greater GreaterOrEqual Less LessOrEqual PRelu".split():
        cases.add(op, op, [np.broadcast_to(a, (len(SPECIAL),) * 2).copy() if op == "PRelu" else a, b])
        cases.add(f"{op} empty", op, [empty, np.ones(3, np.float32)])
    for op in "Max Min Sum Mean".split():
        cases.add(f"{op} of three", op, [a, b, np.ones((1, 1), np.float32)])
    cases.add("Mod", "Mod", [np.where(np.abs(a) > 1e4, 9, a).astype(np.float32), b], fmod=1)
    for low, high in ((-1, 1), (NAN, 1), (-INF, INF), (1, -1)):
        cases.add(f"Clip {low} {high}", "Clip", [x, np.float32(low), np.float32(high)])
    cases.add("Where", "Where", [np.arange(len(x)) % 2 == 0, x, -x])
    integers = np.array([0, 1, -1, 7, -7, 2**31 - 1, -2**31, 100], np.int32)
    for op in "Add Sub Mul Max Min Equal Less".split():
        cases.add(f"{op} i32", op, [integers.reshape(-1, 1), integers.reshape(1, -1)])
    divisors = np.where((integers == 0) | (integers == -1), 3, integers).astype(np.int32)
    for op in "Div Mod".split():
        cases.add(f"{op} i32", op, [integers.reshape(-1, 1), divisors.reshape(1, -1)])
    for op in "Abs Neg Sign".split():
        cases.add(f"{op} i32", op, [integers[integers != -2**31]])


def reductions(cases):
    random = np.random.default_rng(1)
    plain = random.standard_normal((4, 5, 3)).astype(np.float32)
    rows = np.stack([plain[0], plain[1], plain[2], plain[3]])
    rows[0, 1, 1], rows[1, 2, 0], rows[2, 3, 2], rows[2, 0, 2] = NAN, INF, INF, -INF
    rows[3, :, 0] = -INF
    zeros = np.array([[0.0, -0.0], [-0.0, 0.0], [-0.0, -0.0]], np.float32)
    for op in ("ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum "
               "ReduceSumSquare").split():
        for axes in ([1], [2], [0, 2]):
            value = np.abs(rows) if op == "ReduceLogSum" else rows
            cases.add(f"{op} {axes}", op, [value, np.array(axes, np.int64)], opset=18, keepdims=0)
        cases.add(f"{op} empty rows", op, [np.zeros((0, 3), np.float32), np.array([1], np.int64)], opset=18)
        if op not in ("ReduceMax", "ReduceMin"):  # of nothing: their values are not those of other types
            cases.add(f"{op} of nothing", op, [np.zeros((2, 0), np.float32), np.array([1], np.int64)], opset=18)
        cases.add(f"{op} zeros", op, [zeros, np.array([1], np.int64)], opset=18)
    for op in "ArgMax ArgMin".split():
        for axis in (0, 1, 2):
            for last in (0, 1):
                cases.add(f"{op} {axis} {last}", op, [rows], opset=13, axis=axis, select_last_index=last)
    for op in "Softmax LogSoftmax Hardmax".split():
        for axis in (0, 1, -1):
            # Which element is hot beside a NaN is left open.
            cases.add(f"{op} {axis}", op, [np.nan_to_num(rows, nan=0.5) if op == "Hardmax" else rows], opset=13, axis=axis)
            cases.add(f"{op} {axis} finite", op, [plain], opset=13, axis=axis)
    for exclusive in (0, 1):
        for reverse in (0, 1):
            cases.add(f"CumSum {exclusive} {reverse}", "CumSum", [rows, np.int64(1)], exclusive=exclusive, reverse=reverse, opset=14)
    for largest in (0, 1):
        for k in (1, 3, 5):
            for name, value in (("TopK", np.nan_to_num(rows, nan=0.5)), ("TopK with NaN", rows)):
                cases.add(f"{name} {largest} {k}", "TopK", [value, np.array([k], np.int64)], outputs=2, axis=1, largest=largest,
                          opset=11)
    many = np.array([3, 8, 1, 3, -0.0, 0.0, INF, 8, -INF, 2, 1], np.float32)
    for k in (2, 5, 11):
        for largest in (0, 1):
            cases.add(f"TopK of many {k} {largest}", "TopK", [many, np.array([k], np.int64)], outputs=2, largest=largest, opset=11)
    cases.add("NonZero", "NonZero", [rows])
    finite = np.array([3, 1, 3, 2, 1, 0, -0.0, INF, INF], np.float32)
    for is_sorted in (0, 1):
        cases.add(f"Unique {is_sorted}", "Unique", [finite], outputs=4, opset=11, sorted=is_sorted)
    data = np.array([1, NAN, 3, INF, -INF, 0], np.float32)
    for how in "add mul max min".split():
        for update in (NAN, 2, -INF):
            updates = np.array([update, 2, NAN, 1], np.float32)
            cases.add(f"ScatterND {how} {update}", "ScatterND", [data, np.array([[0], [1], [2], [0]], np.int64), updates], opset=18,
                      reduction=how)
            cases.add(f"ScatterElements {how} {update}", "ScatterElements", [data, np.array([0, 1, 2, 0], np.int64), updates],
                      opset=18, reduction=how)
    image = random.standard_normal((1, 2, 6, 7)).astype(np.float32)
    image[0, 0, 1, 1], image[0, 0, 4, 4], image[0, 1, 2, 3] = NAN, INF, -INF
    for op in "MaxPool AveragePool".split():
        for ceil in (0, 1):
            cases.add(f"{op} {ceil}", op, [image], opset=19, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1], ceil_mode=ceil)
    for op in "GlobalMaxPool GlobalAveragePool".split():
        cases.add(op, op, [image])
    cases.add("LpPool", "LpPool", [np.nan_to_num(image, posinf=2, neginf=-2)], opset=18, kernel_shape=[2, 2])
    for step in (-1, -2, 1, 3):
        for start in (-9, -3, 0, 2, 9):
            for end in (-9, -4, 1, 9):
                cases.add(f"Slice {start} {end} {step}", "Slice", [np.arange(4, dtype=np.float32)] +
                          [np.array([n], np.int64) for n in (start, end, 0, step)])


def sampling(cases):
    random = np.random.default_rng(2)
    for i in range(4):
        shape = (1, 2, int(random.integers(2, 7)), int(random.integers(2, 7)))
        x = random.standard_normal(shape).astype(np.float32)
        grid = random.uniform(-1.6, 1.6, (1, 5, 4, 2)).astype(np.float32)
        for mode in "linear nearest cubic".split():
            for padding in "zeros border reflection".split():
                for corners in (0, 1):
                    cases.add(f"GridSample {i} {mode} {padding} {corners}", "GridSample", [x, grid], opset=20, mode=mode,
                              padding_mode=padding, align_corners=corners, tolerance=1e-4)
        scales = np.array([1, 1, *random.uniform(0.4, 2.7, 2)], np.float32)
        sizes = np.array([1, 2, *random.integers(1, 12, 2)], np.int64)
        none = np.array([], np.float32)
        for mode in "nearest linear cubic".split():
            for place in "half_pixel asymmetric align_corners pytorch_half_pixel half_pixel_symmetric".split():
                nearests = "round_prefer_floor round_prefer_ceil floor ceil".split() if mode == "nearest" else ["floor"]
                for nearest in nearests:
                    for given in ("scales", "sizes"):
                        inputs = [x, none, scales] if given == "scales" else [x, none, none, sizes]
                        cases.add(f"Resize {i} {mode} {place} {nearest} {given}", "Resize", inputs, opset=19, mode=mode,
                                  coordinate_transformation_mode=place, nearest_mode=nearest, tolerance=1e-4)
        for mode in "linear cubic".split():
            cases.add(f"Resize {i} antialias {mode}", "Resize", [x, none, none, sizes], opset=19, mode=mode, antialias=1, tolerance=1e-4)
        boxes = np.array([[0, 0, 3, 3], [1, 1, 2.5, 4], [-1, 0, 9, 5], [-30, -20, 50, 60], [40, 40, 50, 60], [3, 3, 0, 1]], np.float32)
        for mode in "avg max".split():
            for ratio in (0, 2):
                for place in "half_pixel output_half_pixel".split():
                    cases.add(f"RoiAlign {i} {mode} {ratio} {place}", "RoiAlign", [x, boxes, np.zeros(len(boxes), np.int64)], opset=16, mode=mode,
                              output_height=2, output_width=3, sampling_ratio=ratio, coordinate_transformation_mode=place,
                              tolerance=1e-4)


def nodes_of(case, number):
    """The node, its graph inputs and its outputs' names."""
    names, values = [], {}
    for i, value in enumerate(case["inputs"]):
        value = np.asarray(value)
        name = f"c{number}_x{i}"
        names.append(name)
        values[name] = value
    outputs = [f"c{number}_y{i}" for i in range(case["outputs"])]
    return helper.make_node(case["op"], names, outputs, name=f"c{number}", **case["attributes"]), values, outputs


def model_of(nodes, inputs, constants, outputs, opset):
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
                                           for n, v in inputs.items()],
                              [helper.make_empty_tensor_value_info(n) for n in outputs],
                              initializer=[onnx.numpy_helper.from_array(v, n) for n, v in constants.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def expected_of(case, number):
    """What ONNX Runtime gives; None where it does not know the case."""
    node, values, outputs = nodes_of(case, number)
    try:
        options = onnxruntime.SessionOptions()
        options.add_session_config_entry("session.x64quantprecision", "1")  # CPUs without VNNI saturate sums of pairs
        options.log_severity_level = 4
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        constants = {n: v for i, (n, v) in enumerate(values.items()) if i > 0 and case["op"] in ("Resize",)}
        inputs = {n: v for n, v in values.items() if n not in constants}
        model = model_of([node], inputs, constants, outputs, case["opset"])
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return session.run(None, inputs)
    except Exception as error:  # noqa: BLE001: its errors have no class of their own
        return str(error)


def differs(got, want, tolerance):
    if got.shape != want.shape:
        return f"shape {got.shape}, not {want.shape}"
    if got.dtype != want.dtype:
        return f"{got.dtype}, not {want.dtype}"
    if want.dtype.kind != "f":
        return "" if np.array_equal(got, want) else f"{got.ravel()[:24]}, not {want.ravel()[:24]}"
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    with np.errstate(all="ignore"):
        near = np.abs(got - want) <= tolerance * np.maximum(1, np.abs(want))
    wrong = ~(same | (near & np.isfinite(got) & np.isfinite(want)))
    if wrong.any():
        at = np.argwhere(wrong)[0]
        return f"{wrong.sum()} of {wrong.size}: first at {at.tolist()}: {got[tuple(at)]}, not {want[tuple(at)]}"
    return ""


def run_celer(celer, folder, group, opset):
    """The outputs by name, for cases of one opset."""
    nodes, inputs, constants, outputs = [], {}, {}, []
    for number, case in group:
        node, values, names = nodes_of(case, number)
        nodes.append(node)
        outputs += names
        for i, (name, value) in enumerate(values.items()):
            # Sizes and axes are constants in real networks; what is computed with comes with the run.
            (constants if i > 0 and value.dtype == np.int64 or case["op"] == "Resize" and i > 0 else inputs)[name] = value
    model = folder / f"{opset}.onnx"
    onnx.save(model_of(nodes, inputs, constants, outputs, opset), model)
    command = [celer, "graph", "run", model, "--output", folder / "out.npz"]
    for name, value in inputs.items():
        np.save(folder / f"{name}.npy", value)
        command += ["--input", f"{name}={folder / name}.npy"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        return None, done.stderr.strip()
    with np.load(folder / "out.npz") as file:
        return {name: file[name] for name in outputs}, ""


def main():
    celer, show = sys.argv[1], "--show" in sys.argv
    cases = Cases()
    elementwise(cases)
    reductions(cases)
    sampling(cases)
    groups, want, unknown = {}, {}, 0
    for number, case in enumerate(cases.list):
        expected = expected_of(case, number)
        if isinstance(expected, str):
            unknown += 1
            if show:
                print(f"ONNX Runtime does not know {case['name']}: {expected[:150]}")
            continue
        want[number] = expected
        groups.setdefault(case["opset"], []).append((number, case))
    wrong = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for opset, group in groups.items():
            got, error = run_celer(celer, folder, group, opset)
            if got is None:
                wrong.append(f"opset {opset}: {error}")
                continue
            for number, case in group:
                for i, expected in enumerate(want[number]):
                    said = differs(got[f"c{number}_y{i}"], expected, case["tolerance"])
                    if said and not any(case["name"].startswith(key) for key in DIFFERS):
                        wrong.append(f"{case['name']}, output {i}: {said}")
    print("\n".join(wrong[:200]))
    print(f"{len(want)} cases, {unknown} that ONNX Runtime does not know, {len(wrong)} differ")
    return 1 if wrong or len(want) < 500 else 0


if __name__ == "__main__":
    sys.exit(main())
