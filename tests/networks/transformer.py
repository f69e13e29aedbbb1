#!/usr/bin/env python3
"""A transformer encoder with random weights, node for node as PyTorch exports one: embeddings, attention with a mask, GELU by
Erf, LayerNormalization, a pooler that is a Gemm, a head with few classes.

  python transformer.py OUT.onnx [LAYERS HIDDEN HEADS TOKENS]     and OUT.NAME.npy for each input
"""
import pathlib
import sys

import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper

VOCABULARY, CLASSES = 3000, 5


def make(layers=2, hidden=64, heads=4, seed=3):
    """An onnx.ModelProto with the inputs ids, mask [batch, tokens] and the outputs states, scores. Weights have columns of
    different size, as trained ones have."""
    rng = np.random.default_rng(seed)
    constants, nodes = [], []

    def constant(name, values):
        constants.append(numpy_helper.from_array(values, name))
        return name

    def ints(name, *values):
        return constant(name, np.array(values, np.int64))

    def number(name, value):
        return constant(name, np.array(value, np.float32))

    def node(op, inputs, out, **attributes):
        nodes.append(helper.make_node(op, inputs, [out], name="/" + out + "/" + op, **attributes))
        return out

    def matrix(rows, columns):
        sizes = np.exp(rng.normal(0, 0.5, columns))
        return (rng.normal(size=(rows, columns)) * sizes / np.sqrt(rows)).astype(np.float32)

    def linear(x, name, rows, columns):
        product = node("MatMul", [x, constant(name + ".weight", matrix(rows, columns))], name + ".product")
        bias = constant(name + ".bias", rng.normal(0, 0.1, columns).astype(np.float32))
        return node("Add", [bias, product], name)

    def norm(x, name):
        scale = constant(name + ".weight", rng.uniform(0.7, 1.3, hidden).astype(np.float32))
        bias = constant(name + ".bias", rng.normal(0, 0.1, hidden).astype(np.float32))
        return node("LayerNormalization", [x, scale, bias], name, axis=-1, epsilon=1e-5)

    def split(x, name):
        return node("Transpose", [node("Reshape", [x, "heads_shape"], name + ".split")], name + ".heads", perm=[0, 2, 1, 3])

    ints("heads_shape", 0, 0, heads, hidden // heads)
    ints("rows_shape", 0, 0, hidden)
    for name, value in (("one", 1.0), ("much", -10000.0), ("two", 2.0), ("half", 0.5), ("root2", 2 ** 0.5),
                        ("root_width", (hidden // heads) ** 0.5)):
        number(name, value)
    words = constant("words", rng.normal(size=(VOCABULARY, hidden)).astype(np.float32))
    places = constant("places", rng.normal(0, 0.2, size=(1, 512, hidden)).astype(np.float32))
    length = node("Gather", [node("Shape", ["ids"], "ids.shape"), constant("at_1", np.array(1, np.int64))], "length", axis=0)
    length = node("Unsqueeze", [length, ints("axis_0", 0)], "length.list")
    place = node("Slice", [places, ints("from", 0), length, ints("axis_1", 1)], "place")
    x = norm(node("Add", [node("Gather", [words, "ids"], "word"), place], "embedded"), "norm")
    mask = node("Cast", [node("Unsqueeze", ["mask", ints("axes_12", 1, 2)], "mask.wide")], "mask.float", to=TensorProto.FLOAT)
    hide = node("Mul", [node("Sub", ["one", mask], "mask.not"), "much"], "hide")
    for i in range(layers):
        at = f"layer{i}"
        q, k, v = (split(linear(x, f"{at}.{part}", hidden, hidden), f"{at}.{part}") for part in "qkv")
        scores = node("MatMul", [q, node("Transpose", [k], f"{at}.k.turned", perm=[0, 1, 3, 2])], f"{at}.qk")
        scores = node("Add", [node("Div", [scores, "root_width"], f"{at}.scaled"), hide], f"{at}.masked")
        y = node("MatMul", [node("Softmax", [scores], f"{at}.weights", axis=-1), v], f"{at}.seen")
        y = node("Reshape", [node("Transpose", [y], f"{at}.back", perm=[0, 2, 1, 3]), "rows_shape"], f"{at}.rows")
        x = norm(node("Add", [linear(y, f"{at}.o", hidden, hidden), x], f"{at}.sum1"), f"{at}.norm1")
        u = linear(x, f"{at}.up", hidden, 4 * hidden)
        erf = node("Add", [node("Erf", [node("Div", [u, "root2"], f"{at}.div")], f"{at}.erf"), "one"], f"{at}.erf1")
        u = node("Mul", [node("Mul", [u, erf], f"{at}.times"), "half"], f"{at}.gelu")
        x = norm(node("Add", [linear(u, f"{at}.down", 4 * hidden, hidden), x], f"{at}.sum2"), f"{at}.norm2")
    node("Identity", [x], "states")
    first = node("Gather", [x, constant("at_0", np.array(0, np.int64))], "first", axis=1)
    pooled = node("Gemm", [first, constant("pool.weight", np.ascontiguousarray(matrix(hidden, hidden).T)),
                           constant("pool.bias", rng.normal(0, 0.1, hidden).astype(np.float32))], "pool", transB=1)
    head = constant("head.weight", np.ascontiguousarray(matrix(hidden, CLASSES).T))
    node("Gemm", [node("Tanh", [pooled], "pooled"), head, constant("head.bias", np.zeros(CLASSES, np.float32))], "scores",
         transB=1)
    whole = lambda name: helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "tokens"])
    graph = helper.make_graph(
        nodes, "transformer", [whole("ids"), whole("mask")],
        [helper.make_tensor_value_info("states", TensorProto.FLOAT, ["batch", "tokens", hidden]),
         helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", CLASSES])], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    checker.check_model(model)
    return model


def inputs(tokens, batch=1, seed=5, hidden_tokens=3):
    rng = np.random.default_rng(seed)
    mask = np.ones((batch, tokens), np.int64)
    mask[:, tokens - hidden_tokens:] = 0
    return {"ids": rng.integers(0, VOCABULARY, (batch, tokens)), "mask": mask}


def main():
    if len(sys.argv) not in (2, 6):
        sys.exit(__doc__)
    out = pathlib.Path(sys.argv[1])
    layers, hidden, heads, tokens = map(int, sys.argv[2:]) if len(sys.argv) == 6 else (6, 384, 12, 128)
    out.write_bytes(make(layers, hidden, heads).SerializeToString())
    for name, value in inputs(tokens).items():
        np.save(out.with_suffix(f".{name}.npy"), value)


if __name__ == "__main__":
    main()
