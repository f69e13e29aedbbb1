#!/usr/bin/env python3
"""Operators of com.microsoft at random shapes beside ONNX Runtime: microsoft_test.py CELER [NAME]"""
import sys

import numpy as np

import beside_ort
from beside_ort import Case


def f32(random, *shape, scale=1.0):
    return (scale * random.standard_normal(shape)).astype(np.float32)


def u8(random, *shape):
    return random.integers(0, 256, shape).astype(np.uint8)


def i8(random, *shape, most=127):
    return random.integers(-most, most + 1, shape).astype(np.int8)


def fused_conv(random):
    cases = []
    for activation, params in (("Relu", None), ("Tanh", None), ("Sigmoid", None), ("LeakyRelu", [0.2]),
                               ("Clip", [-0.5, 0.7]), ("HardSigmoid", [0.3, 0.4])):
        for with_sum in (False, True):
            c, m, h = int(random.integers(1, 6)), int(random.integers(1, 9)), int(random.integers(5, 12))
            case = Case(f"FusedConv {activation} {with_sum}")
            x = case.input("x", f32(random, 2, c, h, h + 1))
            w, b = case.constant("w", f32(random, m, c, 3, 3, scale=0.3)), case.constant("b", f32(random, m))
            inputs = [x, w, b] + ([case.input("z", f32(random, 2, m, h, h + 1))] if with_sum else [])
            extra = {"activation_params": params} if params else {}
            case.node("FusedConv", inputs, ["y"], activation=activation, pads=[1, 1, 1, 1], **extra).output("y")
            cases.append(case)
    return cases, {"opset": 13}


def fused_gemm(random):
    cases = []
    for activation, extra in (("Relu", {}), ("LeakyRelu", {"activation_alpha": 0.3}), ("Tanh", {}), ("Sigmoid", {}),
                              ("Elu", {"activation_alpha": 0.5}), ("Softplus", {})):
        for trans in (0, 1):
            m, k, n = (int(v) for v in random.integers(1, 20, 3))
            case = Case(f"FusedGemm {activation} {trans}")
            inputs = [case.input("a", f32(random, m, k)), case.constant("b", f32(random, *((n, k) if trans else (k, n)))),
                      case.constant("c", f32(random, n))]
            case.node("FusedGemm", inputs, ["y"], activation=activation, transB=trans, alpha=0.7, **extra).output("y")
            cases.append(case)
    return cases, {"opset": 13}


def fused_matmul(random):
    cases = []
    for trans_a in (0, 1):
        for trans_b in (0, 1):
            for batch in ((), (3,), (2, 3)):
                for constant in (False, True):
                    m, k, n = (int(v) for v in random.integers(1, 9, 3))
                    case = Case(f"FusedMatMul {trans_a}{trans_b} {batch}")
                    a = case.input("a", f32(random, *batch, *((k, m) if trans_a else (m, k))))
                    right = f32(random, *batch, *((n, k) if trans_b else (k, n)))
                    b = case.constant("b", right) if constant else case.input("b", right)
                    case.node("FusedMatMul", [a, b], ["y"], transA=trans_a, transB=trans_b, alpha=0.5).output("y")
                    cases.append(case)
    # The batch is the second dimension of what comes in.
    case = Case("FusedMatMul transBatch")
    case.node("FusedMatMul", [case.input("a", f32(random, 4, 3, 5)), case.input("b", f32(random, 5, 3, 6))], ["y"],
              transBatchA=1, transBatchB=1).output("y")
    cases.append(case)
    return cases, {"opset": 13}


def gelus(random):
    cases = []
    for op in ("Gelu", "BiasGelu", "FastGelu", "QuickGelu"):
        for bias in (False, True):
            if (op == "BiasGelu") != bias and not (op == "FastGelu"):
                continue
            case = Case(f"{op} {bias}")
            inputs = [case.input("x", f32(random, 2, 5, 16, scale=3))]
            if bias:
                inputs.append(case.constant("b", f32(random, 16)))
            extra = {"alpha": 1.5} if op == "QuickGelu" else {}
            case.node(op, inputs, ["y"], **extra).output("y")
            cases.append(case)
    return cases, {"opset": 13}


def norms(random):
    cases = []
    for hidden in (1, 7, 64):
        for bias in (False, True):
            case = Case(f"SkipLayerNormalization {hidden} {bias}", 1e-4)
            inputs = [case.input("x", f32(random, 2, 3, hidden)), case.input("s", f32(random, 2, 3, hidden)),
                      case.constant("g", f32(random, hidden)), case.constant("be", f32(random, hidden))]
            if bias:
                inputs.append(case.constant("bi", f32(random, hidden)))
            case.node("SkipLayerNormalization", inputs, ["y", "", "", "sum"], epsilon=1e-5).output("y", "sum")
            cases.append(case)
            case = Case(f"SkipSimplifiedLayerNormalization {hidden} {bias}", 1e-4)
            inputs = [case.input("x", f32(random, 2, 3, hidden)), case.input("s", f32(random, 2, 3, hidden)),
                      case.constant("g", f32(random, hidden))]
            if bias:
                inputs.append(case.constant("bi", f32(random, hidden)))
            case.node("SkipSimplifiedLayerNormalization", inputs, ["y", "", "", "sum"], epsilon=1e-5).output("y", "sum")
            cases.append(case)
        case = Case(f"SimplifiedLayerNormalization {hidden}", 1e-4)
        case.node("SimplifiedLayerNormalization", [case.input("x", f32(random, 2, 3, hidden)),
                                                   case.constant("g", f32(random, hidden))], ["y"], domain="",
                  epsilon=1e-5, axis=-1).output("y")
        cases.append(case)
        case = Case(f"LayerNormalization of opset 13, {hidden}", 1e-4)
        case.node("LayerNormalization", [case.input("x", f32(random, 2, 3, hidden)), case.constant("g", f32(random, hidden)),
                                         case.constant("b", f32(random, hidden))], ["y"], domain="", epsilon=1e-5,
                  axis=-1).output("y")
        cases.append(case)
    return cases, {"opset": 13}


def embeddings(random):
    cases = []
    for mask in (False, True):
        for segments in (False, True):
            case = Case(f"EmbedLayerNormalization {mask} {segments}", 1e-4)
            ids = case.input("ids", random.integers(0, 11, (2, 5)).astype(np.int32))
            inputs = [ids, case.input("seg", random.integers(0, 2, (2, 5)).astype(np.int32)) if segments else "",
                      case.constant("w", f32(random, 11, 8)), case.constant("p", f32(random, 9, 8)),
                      case.constant("s", f32(random, 2, 8)) if segments else "", case.constant("g", f32(random, 8)),
                      case.constant("b", f32(random, 8))]
            if mask:
                lengths = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)
                inputs.append(case.input("m", lengths))
            case.node("EmbedLayerNormalization", inputs, ["y", "n"], epsilon=1e-5).output("y", "n")
            cases.append(case)
    return cases, {"opset": 13}


def attention(random):
    cases = []
    for kind in ("none", "lengths", "ends and starts", "2d", "3d"):
        for causal in (0, 1):
            for past in (False, True):
                b, s, heads, width = 2, 4, 2, 4
                hidden, before = heads * width, 3 if past else 0
                total = s + before
                case = Case(f"Attention {kind} {causal} {past}", 1e-4)
                x = case.input("x", f32(random, b, s, hidden))
                w, bias = case.constant("w", f32(random, hidden, 3 * hidden, scale=0.4)), case.constant("b", f32(random, 3 * hidden))
                masks = {"none": None, "lengths": np.array([total, total - 1]),
                         "ends and starts": np.array([total, total - 1, 1, 0]),
                         "2d": (random.random((b, total)) > 0.3), "3d": (random.random((b, s, total)) > 0.3)}
                mask = masks[kind]
                if mask is not None and mask.ndim > 1:
                    mask[..., 0] = True
                inputs = [x, w, bias, case.input("m", mask.astype(np.int32)) if mask is not None else ""]
                outputs = ["y"]
                if past:
                    inputs.append(case.input("past", f32(random, 2, b, heads, before, width)))
                    outputs.append("present")
                case.node("Attention", inputs, outputs, num_heads=heads, unidirectional=causal).output(*outputs)
                cases.append(case)
    case = Case("Attention with sizes and a bias of scores", 1e-4)
    case.node("Attention", [case.input("x", f32(random, 2, 4, 6)), case.constant("w", f32(random, 6, 8 + 8 + 12)),
                            case.constant("b", f32(random, 28)), "", "", case.input("r", f32(random, 1, 2, 4, 4))], ["y"],
              num_heads=2, qkv_hidden_sizes=[8, 8, 12], scale=0.3).output("y")
    cases.append(case)
    return cases, {"opset": 13}


def multi_head(random):
    cases = []
    b, s, t, heads, width = 2, 3, 5, 2, 4
    hidden = heads * width
    for bias in (False, True):
        for mask in (None, "1d", "2d"):
            for score_bias in (False, True):
                case = Case(f"MultiHeadAttention {bias} {mask} {score_bias}", 1e-4)
                inputs = [case.input("q", f32(random, b, s, hidden)), case.input("k", f32(random, b, t, hidden)),
                          case.input("v", f32(random, b, t, hidden)), case.constant("b", f32(random, 3 * hidden)) if bias else "",
                          "" if mask is None else case.input("m", np.array([t, t - 2], np.int32) if mask == "1d" else
                                                             np.array([[1] * t, [1] * (t - 1) + [0]], np.int32)),
                          case.input("r", f32(random, b, heads, s, t)) if score_bias else ""]
                case.node("MultiHeadAttention", inputs, ["y"], num_heads=heads).output("y")
                cases.append(case)
    case = Case("MultiHeadAttention with a past", 1e-4)
    inputs = [case.input("q", f32(random, b, s, hidden)), case.input("k", f32(random, b, s, hidden)),
              case.input("v", f32(random, b, s, hidden)), "", "", "", case.input("pk", f32(random, b, heads, 2, width)),
              case.input("pv", f32(random, b, heads, 2, width))]
    case.node("MultiHeadAttention", inputs, ["y", "k2", "v2"], num_heads=heads, unidirectional=1).output("y", "k2", "v2")
    cases.append(case)
    case = Case("MultiHeadAttention in heads", 1e-4)
    inputs = [case.input("q", f32(random, b, s, hidden)), case.input("k", f32(random, b, heads, t, width)),
              case.input("v", f32(random, b, heads, t, width))]
    case.node("MultiHeadAttention", inputs, ["y"], num_heads=heads, scale=0.2).output("y")
    cases.append(case)
    return cases, {"opset": 13}


def rotary(random):
    cases = []
    for interleaved in (0, 1):
        for shape, extra in (((2, 3, 16), {"num_heads": 2}), ((2, 2, 3, 8), {})):
            for places in ("first", "all"):
                case = Case(f"RotaryEmbedding {interleaved} {shape} {places}")
                tokens = shape[1] if len(shape) == 3 else shape[2]
                at = np.array([2]) if places == "first" else random.integers(0, 9, (2, tokens))
                case.node("RotaryEmbedding", [case.input("x", f32(random, *shape)), case.input("p", at.astype(np.int64)),
                                              case.constant("c", f32(random, 9, 4)), case.constant("s", f32(random, 9, 4))],
                          ["y"], interleaved=interleaved, **extra).output("y")
                cases.append(case)
    return cases, {"opset": 13}


def group_query(random):
    cases = []
    for tokens, past in ((5, 0), (1, 4), (2, 3)):
        for rotate in (0, 1):
            for packed in (False, True):
                for window in (-1, 2):
                    b, heads, kv, width = 1, 4, 2, 16
                    case = Case(f"GroupQueryAttention {tokens} {past} {rotate} {packed} {window}", 1e-4)
                    columns = (heads + 2 * kv) * width if packed else heads * width
                    inputs = [case.input("q", f32(random, b, tokens, columns)),
                              "" if packed else case.input("k", f32(random, b, tokens, kv * width)),
                              "" if packed else case.input("v", f32(random, b, tokens, kv * width)),
                              case.input("pk", f32(random, b, kv, past, width)), case.input("pv", f32(random, b, kv, past, width)),
                              case.input("n", np.array([tokens + past - 1], np.int32)),
                              case.input("t", np.array([tokens + past], np.int32))]
                    if rotate:
                        inputs += [case.constant("c", f32(random, 16, width // 2)), case.constant("s", f32(random, 16, width // 2))]
                    case.node("GroupQueryAttention", inputs, ["y", "k2", "v2"], num_heads=heads, kv_num_heads=kv,
                              do_rotary=rotate, local_window_size=window).output("y", "k2", "v2")
                    cases.append(case)
    return cases, {"opset": 13}


def scale_and_zero(case, random, name, signed=False):
    zero = random.integers(-20, 20) if signed else random.integers(100, 150)
    return [case.constant(name + "_s", np.float32(random.uniform(0.01, 0.05))),
            case.constant(name + "_z", (np.int8 if signed else np.uint8)(zero))]


def qlinear(random):
    cases = []
    for signed in (False, True):
        make = i8 if signed else u8
        for op in ("QLinearAdd", "QLinearMul"):
            for shapes in (((2, 3, 4), (2, 3, 4)), ((2, 3, 4), (4,)), ((1,), (2, 5))):
                case = Case(f"{op} {signed} {shapes}", steps=1)
                inputs = []
                for i, shape in enumerate(shapes):
                    inputs += [case.input(f"x{i}", make(random, *shape))] + scale_and_zero(case, random, f"x{i}", signed)
                case.node(op, inputs + scale_and_zero(case, random, "y", signed), ["y"]).output("y")
                cases.append(case)
        for op, shape, extra in (("QLinearSigmoid", (3, 7), {}), ("QLinearLeakyRelu", (3, 7), {"alpha": 0.1}),
                                 ("QLinearGlobalAveragePool", (2, 5, 4, 3), {"channels_last": 0}),
                                 ("QLinearGlobalAveragePool", (2, 4, 3, 5), {"channels_last": 1}),
                                 ("QLinearAveragePool", (2, 5, 6, 7), {"kernel_shape": [2, 3], "strides": [2, 1]}),
                                 ("QLinearSoftmax", (3, 9), {"axis": -1, "opset": 13}),
                                 ("QLinearSoftmax", (2, 3, 4), {"axis": 1, "opset": 11})):
            case = Case(f"{op} {signed} {shape}", steps=1)
            inputs = [case.input("x", make(random, *shape))] + scale_and_zero(case, random, "x", signed)
            if op == "QLinearSoftmax":
                inputs += [case.constant("y_s", np.float32(1 / 256)), case.constant("y_z", np.int8(-128) if signed else np.uint8(0))]
            else:
                inputs += scale_and_zero(case, random, "y", signed)
            case.node(op, inputs, ["y"], **extra).output("y")
            cases.append(case)
        case = Case(f"QLinearConcat {signed}", steps=1)
        parts = []
        for i, columns in enumerate((2, 3, 1)):
            parts += [case.input(f"x{i}", make(random, 2, columns, 3))] + scale_and_zero(case, random, f"x{i}", signed)
        case.node("QLinearConcat", scale_and_zero(case, random, "y", signed) + parts, ["y"], axis=1).output("y")
        cases.append(case)
    return cases, {"opset": 13}


def products(random):
    cases = []
    for per_column in (False, True):
        m, k, n = (int(v) for v in random.integers(2, 40, 3))
        scales = random.uniform(0.01, 0.05, n).astype(np.float32) if per_column else np.float32(0.02)
        zeros = np.zeros(n, np.int8) if per_column else np.int8(0)
        for bias in (False, True):
            case = Case(f"MatMulIntegerToFloat {per_column} {bias}", 1e-4)
            inputs = [case.input("a", u8(random, 2, m, k)), case.constant("b", i8(random, k, n)), case.constant("as", np.float32(0.03)),
                      case.constant("bs", scales), case.constant("az", np.uint8(120)), case.constant("bz", zeros)]
            if bias:
                inputs.append(case.constant("bias", f32(random, n)))
            case.node("MatMulIntegerToFloat", inputs, ["y"]).output("y")
            cases.append(case)
            case = Case(f"DynamicQuantizeMatMul {per_column} {bias}", 1e-3)
            inputs = [case.input("a", f32(random, 2, m, k)), case.constant("b", i8(random, k, n)), case.constant("bs", scales),
                      case.constant("bz", zeros)]
            if bias:
                inputs.append(case.constant("bias", f32(random, n)))
            case.node("DynamicQuantizeMatMul", inputs, ["y"]).output("y")
            cases.append(case)
            for real in (False, True):
                case = Case(f"QGemm {per_column} {bias} {real}", 1e-4, steps=1)
                inputs = [case.input("a", u8(random, m, k)), case.constant("as", np.float32(0.03)), case.constant("az", np.uint8(120)),
                          case.constant("b", i8(random, n, k)), case.constant("bs", scales), case.constant("bz", zeros),
                          case.constant("c", random.integers(-1000, 1000, n).astype(np.int32)) if bias else ""]
                if not real:
                    inputs += [case.constant("ys", np.float32(0.5)), case.constant("yz", np.uint8(128))]
                case.node("QGemm", inputs, ["y"], transB=1, alpha=1.0).output("y")
                cases.append(case)
    return cases, {"opset": 13}


def qattention(random):
    cases = []
    for causal in (0, 1):
        case = Case(f"QAttention {causal}", 1e-4)
        inputs = [case.input("x", u8(random, 2, 4, 8)), case.constant("w", i8(random, 8, 24)), case.constant("b", f32(random, 24)),
                  case.constant("xs", np.float32(0.02)), case.constant("ws", np.float32(0.01)),
                  case.input("m", np.array([4, 3], np.int32)), case.constant("xz", np.uint8(128)), case.constant("wz", np.int8(0))]
        case.node("QAttention", inputs, ["y"], num_heads=2, unidirectional=causal).output("y")
        cases.append(case)
    return cases, {"opset": 13}


def nbits(random):
    cases = []
    for bits in (4, 8):
        for block in (16, 32, 64):
            for zeros in (None, "bytes", "reals"):
                for rows in (1, 5):
                    if bits == 8 and zeros == "reals":
                        continue  # ONNX Runtime has no such kernel
                    k, n = int(random.integers(1, 5)) * 32 + (8 if rows == 5 else 0), int(random.integers(1, 40))
                    blocks = (k + block - 1) // block
                    case = Case(f"MatMulNBits {bits} {block} {zeros} {rows}", 1e-4)
                    inputs = [case.input("a", f32(random, 2, rows, k)), case.constant("b", u8(random, n, blocks, block * bits // 8)),
                              case.constant("s", (0.01 * random.random(n * blocks) + 0.001).astype(np.float32))]
                    if zeros == "bytes":
                        inputs.append(case.constant("z", u8(random, n * ((blocks * bits + 7) // 8))))
                    if zeros == "reals":
                        inputs.append(case.constant("z", (8 * random.random(n * blocks)).astype(np.float32)))
                    case.node("MatMulNBits", inputs, ["y"], K=k, N=n, bits=bits, block_size=block).output("y")
                    cases.append(case)
    # Inputs may be rounded to 8 bits.
    for k in (64, 256):
        case = Case(f"MatMulNBits with accuracy_level 4, {k}", 2e-2)
        inputs = [case.input("a", f32(random, 3, k)), case.constant("b", u8(random, 17, k // 32, 16)),
                  case.constant("s", (0.01 * random.random(17 * k // 32) + 0.001).astype(np.float32))]
        case.node("MatMulNBits", inputs, ["y"], K=k, N=17, bits=4, block_size=32, accuracy_level=4).output("y")
        cases.append(case)
    return cases, {"opset": 13}


def linears(random):
    cases = []
    for op, kind in (("QuantizeLinear", np.uint8), ("QuantizeLinear", np.int16), ("DequantizeLinear", np.int8),
                     ("DequantizeLinear", np.uint16)):
        case = Case(f"{op} {kind.__name__}", steps=0)
        limits = np.iinfo(kind)
        x = f32(random, 3, 5) if op == "QuantizeLinear" else random.integers(limits.min, limits.max, (3, 5)).astype(kind)
        case.node(op, [case.input("x", x), case.constant("s", np.float32(0.013)), case.constant("z", kind(3))], ["y"]).output("y")
        cases.append(case)
    return cases, {"opset": 13}


def dynamic_lstm(random):
    cases = []
    for directions, direction in ((1, "forward"), (2, "bidirectional")):
        case = Case(f"DynamicQuantizeLSTM {direction}", 3e-2)  # ONNX Runtime rounds what comes in to 8 bits
        hidden, columns = 8, 6
        inputs = [case.input("x", f32(random, 4, 2, columns)), case.constant("w", i8(random, directions, columns, 4 * hidden)),
                  case.constant("r", i8(random, directions, hidden, 4 * hidden)), case.constant("b", f32(random, directions, 8 * hidden)),
                  "", "", "", "", case.constant("ws", np.full(directions, 0.004, np.float32)),
                  case.constant("wz", np.zeros(directions, np.int8)), case.constant("rs", np.full(directions, 0.004, np.float32)),
                  case.constant("rz", np.zeros(directions, np.int8))]
        case.node("DynamicQuantizeLSTM", inputs, ["y", "h"], hidden_size=hidden, direction=direction).output("y", "h")
        cases.append(case)
    return cases, {"opset": 13}


def qlinear_of_onnx(random):
    """QLinearConv and QLinearMatMul of ONNX itself, which a pass rewrites."""
    cases = []
    for groups, bias in ((1, False), (1, True), (4, True)):
        for per_channel in (False, True):
            case = Case(f"QLinearConv {groups} {bias} {per_channel}", steps=1)
            scale = random.uniform(0.01, 0.03, 8).astype(np.float32) if per_channel else np.float32(0.02)
            inputs = [case.input("x", u8(random, 2, 4, 9, 8)), case.constant("xs", np.float32(0.03)), case.constant("xz", np.uint8(118)),
                      case.constant("w", i8(random, 8, 4 // groups, 3, 3)), case.constant("ws", scale),
                      case.constant("wz", np.zeros(8, np.int8) if per_channel else np.int8(0)), case.constant("ys", np.float32(0.4)),
                      case.constant("yz", np.uint8(121))]
            if bias:
                inputs.append(case.constant("b", random.integers(-2000, 2000, 8).astype(np.int32)))
            case.node("QLinearConv", inputs, ["y"], domain="", pads=[1, 1, 1, 1], group=groups).output("y")
            cases.append(case)
    for per_column in (False, True):
        case = Case(f"QLinearMatMul {per_column}", steps=1)
        inputs = [case.input("a", u8(random, 5, 12)), case.constant("as", np.float32(0.03)), case.constant("az", np.uint8(118)),
                  case.constant("b", i8(random, 12, 7)),
                  case.constant("bs", random.uniform(0.01, 0.03, 7).astype(np.float32) if per_column else np.float32(0.02)),
                  case.constant("bz", np.zeros(7, np.int8) if per_column else np.int8(0)), case.constant("ys", np.float32(0.3)),
                  case.constant("yz", np.uint8(121))]
        case.node("QLinearMatMul", inputs, ["y"], domain="").output("y")
        cases.append(case)
    return cases, {"opset": 13}


FAMILIES = {"fused conv": fused_conv, "fused gemm": fused_gemm, "fused matmul": fused_matmul, "gelu": gelus, "norms": norms,
            "embeddings": embeddings, "attention": attention, "multi-head attention": multi_head, "rotary": rotary,
            "group query attention": group_query, "qlinear": qlinear, "products of bytes": products, "qattention": qattention,
            "nbits": nbits, "quantize": linears, "lstm": dynamic_lstm, "qlinear of onnx": qlinear_of_onnx}

if beside_ort.saturates():
    for name in ("products of bytes", "qattention", "lstm", "qlinear of onnx"):
        del FAMILIES[name]
        print(f"{name}: skipped, ONNX Runtime saturates on this CPU")

if __name__ == "__main__":
    sys.exit(beside_ort.main(FAMILIES, sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""))
