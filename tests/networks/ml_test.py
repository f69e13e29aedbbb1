#!/usr/bin/env python3
"""Operators of ai.onnx.ml beside ONNX Runtime: ml_test.py CELER [NAME]

Random nodes, and the models that scikit-learn, LightGBM and XGBoost export (tests/golden/ml, made by
tools/make_ml_models.py), whose outputs are those of ONNX Runtime."""
import pathlib
import sys

import numpy as np
import onnx

import beside_ort
from beside_ort import Case, helper, numpy_helper

MODELS = pathlib.Path(__file__).resolve().parent.parent / "golden" / "ml"
ML = "ai.onnx.ml"
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


def f32(random, *shape, scale=1.0):
    return (scale * random.standard_normal(shape)).astype(np.float32)


def random_trees(random, trees, features, modes=("BRANCH_LEQ",), missing=False, depth=4):
    """Attributes of nodes, and the (tree, node) of each leaf."""
    nodes = {key: [] for key in ("treeids", "nodeids", "featureids", "modes", "values", "truenodeids", "falsenodeids",
                                 "missing_value_tracks_true")}
    leaves = []
    for tree in range(trees):
        count = 0

        def grow(level):
            nonlocal count
            me, count = count, count + 1
            at = len(nodes["treeids"])
            leaf = level == depth or (level > 0 and random.random() < 0.2)
            row = {"treeids": tree, "nodeids": me, "featureids": 0 if leaf else int(random.integers(features)),
                   "modes": "LEAF" if leaf else str(random.choice(modes)),
                   "values": 0.0 if leaf else float(np.round(random.normal(), 1)), "truenodeids": 0, "falsenodeids": 0,
                   "missing_value_tracks_true": int(missing and not leaf and random.random() < 0.5)}
            for key, value in row.items():
                nodes[key].append(value)
            if leaf:
                leaves.append((tree, me))
                return me
            nodes["truenodeids"][at] = grow(level + 1)
            nodes["falsenodeids"][at] = grow(level + 1)
            return me

        grow(0)
    return {"nodes_" + key: value for key, value in nodes.items()}, leaves


def feature_rows(random, rows, features, missing=False):
    x = np.round(f32(random, rows, features), 1)  # so that equality happens
    if missing:
        x[random.random(x.shape) < 0.1] = np.nan
    return x


def weights_of(random, leaves, prefix, targets, positive=False, each=1):
    trees, nodes, ids, weights = [], [], [], []
    for tree, node in leaves:
        for target in (targets if each == 0 else random.choice(targets, each)):
            trees.append(tree)
            nodes.append(node)
            ids.append(int(target))
            weights.append(float(random.random() * 0.3 if positive else random.normal()))
    return {f"{prefix}_treeids": trees, f"{prefix}_nodeids": nodes, f"{prefix}_ids": ids, f"{prefix}_weights": weights}


MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")


def tree_classifiers(random):
    cases = []
    for classes in (2, 3, 5):
        for transform in TRANSFORMS[:4]:
            for base in (0,) if classes == 2 else (0, classes):
                for kind in (np.float32, np.float64, np.int64):
                    case = Case(f"TreeEnsembleClassifier {classes} {transform} {base} {kind.__name__}", 1e-4)
                    attributes, leaves = random_trees(random, 7, 4)
                    attributes |= weights_of(random, leaves, "class", range(classes), each=0)
                    if base:
                        attributes["base_values"] = [float(v) for v in random.normal(size=base)]
                    if classes == 3:
                        attributes["classlabels_strings"] = ["red", "green", "blue"]
                    else:
                        attributes["classlabels_int64s"] = [10 * i + 1 for i in range(classes)]
                    x = case.input("x", feature_rows(random, 9, 4).astype(kind))
                    case.node("TreeEnsembleClassifier", [x], ["l", "s"], domain=ML, post_transform=transform, **attributes)
                    # Of two classes with scores the larger one is the label; ONNX Runtime looks at the second alone.
                    cases.append(case.output("s") if classes == 2 else case.output("l", "s"))
    # Of two classes the leaves speak of one.
    for target in (0, 1):
        for positive in (False, True):
            for transform in TRANSFORMS[:3]:
                for base in (0, 1):
                    case = Case(f"TreeEnsembleClassifier of {target}, {positive} {transform} {base}", 1e-4)
                    attributes, leaves = random_trees(random, 5, 4)
                    attributes |= weights_of(random, leaves, "class", [target], positive)
                    if base:
                        attributes["base_values"] = [0.25]
                    x = case.input("x", feature_rows(random, 12, 4))
                    case.node("TreeEnsembleClassifier", [x], ["l", "s"], domain=ML, post_transform=transform,
                              classlabels_int64s=[0, 1], **attributes)
                    cases.append(case.output("l", "s"))
    return cases, {"opset": 17, "ml": 3}


def tree_regressors(random):
    cases = []
    for targets in (1, 3):
        for aggregate in ("SUM", "AVERAGE", "MIN", "MAX"):
            for transform in ("NONE", "SOFTMAX", "LOGISTIC"):
                for base in (0, targets):
                    missing = aggregate == "SUM"
                    case = Case(f"TreeEnsembleRegressor {targets} {aggregate} {transform} {base}", 1e-4)
                    attributes, leaves = random_trees(random, 6, 5, MODES if transform == "NONE" else MODES[1:2], missing)
                    attributes |= weights_of(random, leaves, "target", range(targets), each=0)
                    if base:
                        attributes["base_values"] = [float(v) for v in random.normal(size=base)]
                    x = case.input("x", feature_rows(random, 17, 5, missing))
                    case.node("TreeEnsembleRegressor", [x], ["y"], domain=ML, n_targets=targets, post_transform=transform,
                              aggregate_function=aggregate, **attributes).output("y")
                    cases.append(case)
    # Thresholds and weights of f64.
    case = Case("TreeEnsembleRegressor f64", 1e-6)
    attributes, leaves = random_trees(random, 6, 5)
    attributes |= weights_of(random, leaves, "target", [0])
    for key, name in (("nodes_values", "nodes_values_as_tensor"), ("target_weights", "target_weights_as_tensor")):
        attributes[name] = numpy_helper.from_array(np.array(attributes.pop(key), np.float64), name)
    case.node("TreeEnsembleRegressor", [case.input("x", feature_rows(random, 11, 5).astype(np.float64))], ["y"], domain=ML,
              n_targets=1, **attributes).output("y")
    return cases + [case], {"opset": 17, "ml": 3}


def tree_ensembles(random):
    """The operator of version 5."""
    cases = []
    for kind in (np.float32, np.float64):
        for member in (False, True):
            case = Case(f"TreeEnsemble {kind.__name__} {member}", 1e-5)
            tensor = lambda array: numpy_helper.from_array(np.array(array))  # noqa: E731
            attributes = {"nodes_splits": tensor(np.array([3.14, 1.2, 4.2 if not member else 0], kind)),
                          "nodes_featureids": [0, 0, 0], "nodes_modes": tensor(np.array([0, 0, 6 if member else 0], np.uint8)),
                          "nodes_truenodeids": [1, 0, 2], "nodes_falsenodeids": [2, 1, 3], "nodes_trueleafs": [0, 1, 1],
                          "nodes_falseleafs": [0, 1, 1], "leaf_targetids": [0, 1, 0, 1], "tree_roots": [0],
                          "leaf_weights": tensor(np.array([5.23, 12.12, -12.23, 7.21], kind)), "n_targets": 2}
            if member:
                attributes["membership_values"] = tensor(np.array([4.0, 5.0, np.nan], kind))
            x = np.array([[1.0], [2.0], [4.0], [5.0], [6.0]], kind)
            case.node("TreeEnsemble", [case.input("x", x)], ["y"], domain=ML, **attributes).output("y")
            cases.append(case)
    return cases, {"opset": 21, "ml": 5}


def linear(random):
    cases = []
    for targets in (1, 2, 4):
        for transform in TRANSFORMS[:4]:
            for kind in (np.float32, np.float64, np.int64):
                case = Case(f"LinearClassifier {targets} {transform} {kind.__name__}", 1e-4)
                labels = max(targets, 2)
                names = {"classlabels_strings": [f"class {i}" for i in range(labels)]} if targets == 4 else \
                    {"classlabels_ints": [3 * i for i in range(labels)]}
                x = case.input("x", (3 * f32(random, 6, 5)).astype(kind))
                case.node("LinearClassifier", [x], ["l", "s"], domain=ML, coefficients=f32(random, targets * 5).tolist(),
                          intercepts=f32(random, targets).tolist(), post_transform=transform, **names)
                cases.append(case.output("l", "s"))
            case = Case(f"LinearRegressor {targets} {transform}", 1e-4)
            case.node("LinearRegressor", [case.input("x", f32(random, 6, 5))], ["y"], domain=ML, targets=targets,
                      coefficients=f32(random, targets * 5).tolist(), intercepts=f32(random, targets).tolist(),
                      post_transform=transform).output("y")
            cases.append(case)
    return cases, {"opset": 17, "ml": 3}


def support_vectors(random):
    cases = []
    for kernel in ("LINEAR", "POLY", "RBF", "SIGMOID"):
        for classes in (2, 3, 4):
            for probabilities in (False, True):
                for transform in ("NONE", "LOGISTIC"):
                    case = Case(f"SVMClassifier {kernel} {classes} {probabilities} {transform}", 1e-3)
                    per_class = [int(v) for v in random.integers(1, 4, classes)]
                    total, pairs = sum(per_class), classes * (classes - 1) // 2
                    extra = {"prob_a": (-1 - random.random(pairs)).tolist(), "prob_b": f32(random, pairs, scale=0.1).tolist()} \
                        if probabilities else {}
                    names = {"classlabels_strings": list("abcd"[:classes])} if classes == 3 else \
                        {"classlabels_ints": list(range(classes))}
                    case.node("SVMClassifier", [case.input("x", f32(random, 7, 4))], ["l", "s"], domain=ML, kernel_type=kernel,
                              kernel_params=[0.3, 0.1, 2.0], vectors_per_class=per_class,
                              support_vectors=f32(random, total * 4).tolist(),
                              coefficients=f32(random, (classes - 1) * total).tolist(), rho=f32(random, pairs).tolist(),
                              post_transform=transform, **names, **extra)
                    cases.append(case.output("l", "s"))
        for one_class in (0, 1):
            case = Case(f"SVMRegressor {kernel} {one_class}", 1e-4)
            case.node("SVMRegressor", [case.input("x", f32(random, 7, 4))], ["y"], domain=ML, kernel_type=kernel,
                      kernel_params=[0.3, 0.1, 3.0], n_supports=5, support_vectors=f32(random, 20).tolist(),
                      coefficients=f32(random, 5).tolist(), rho=[0.2], one_class=one_class).output("y")
            cases.append(case)
    for classes in (2, 3):
        case = Case(f"SVMClassifier without support vectors, {classes}", 1e-4)
        case.node("SVMClassifier", [case.input("x", f32(random, 7, 4))], ["l", "s"], domain=ML, kernel_type="LINEAR", kernel_params=[0.0, 0.0, 0.0],
                  coefficients=f32(random, classes * 4).tolist(), rho=[0.1], classlabels_ints=list(range(classes)))
        cases.append(case.output("l", "s"))
    return cases, {"opset": 17, "ml": 3}


def features(random):
    cases = []
    for kind in (np.float32, np.float64, np.int64, np.int32):
        x = (5 * f32(random, 4, 3)).astype(kind)
        for count in (1, 3):
            case = Case(f"Scaler {kind.__name__} {count}")
            case.node("Scaler", [case.input("x", x)], ["y"], domain=ML, offset=f32(random, count).tolist(),
                      scale=f32(random, count).tolist()).output("y")
            cases.append(case)
        for norm in ("MAX", "L1", "L2"):
            case = Case(f"Normalizer {kind.__name__} {norm}")
            rows = x.copy()
            rows[1] = 0
            case.node("Normalizer", [case.input("x", rows)], ["y"], domain=ML, norm=norm).output("y")
            cases.append(case)
    case = Case("Binarizer")
    cases.append(case.node("Binarizer", [case.input("x", f32(random, 3, 4))], ["y"], domain=ML, threshold=0.2).output("y"))
    for missing in (float("nan"), 0.0):
        case = Case(f"Imputer {missing}")
        x = f32(random, 4, 3)
        x[random.random(x.shape) < 0.4] = missing
        case.node("Imputer", [case.input("x", x)], ["y"], domain=ML, imputed_value_floats=[1.0, 2.0, 3.0],
                  replaced_value_float=missing).output("y")
        cases.append(case)
    case = Case("Imputer of integers")
    case.node("Imputer", [case.input("x", random.integers(0, 3, (4, 3)))], ["y"], domain=ML, imputed_value_int64s=[7],
              replaced_value_int64=1).output("y")
    cases.append(case)
    for x in (f32(random, 3, 5), random.integers(0, 9, (2, 3, 5)), f32(random, 5)):
        case = Case(f"ArrayFeatureExtractor {x.dtype} {x.shape}")
        case.node("ArrayFeatureExtractor", [case.input("x", x), case.constant("i", np.array([2, 0], np.int64))], ["y"],
                  domain=ML).output("y")
        cases.append(case)
    case = Case("FeatureVectorizer")
    case.node("FeatureVectorizer", [case.input("a", f32(random, 3, 2)), case.input("b", f32(random, 3, 4))], ["y"], domain=ML,
              inputdimensions=[2, 4]).output("y")
    cases.append(case)
    return cases, {"opset": 17, "ml": 3}


def encoders(random):
    cases = []
    words = np.array([["red", "blue"], ["green", "red"], ["other", "blue"]])
    numbers = random.integers(0, 5, (3, 2))
    for label, x, extra in (("strings", words, {"cats_strings": ["red", "green", "blue"]}),
                            ("integers", numbers, {"cats_int64s": [0, 2, 4]}),
                            ("floats", numbers.astype(np.float32), {"cats_int64s": [0, 2, 4]})):
        case = Case(f"OneHotEncoder of {label}")
        cases.append(case.node("OneHotEncoder", [case.input("x", x)], ["y"], domain=ML, **extra).output("y"))
    for label, x, extra in (
            ("strings to integers", words, {"keys_strings": ["red", "blue"], "values_int64s": [5, 6], "default_int64": 9}),
            ("strings to floats", words, {"keys_strings": ["red", "blue"], "values_floats": [0.5, 0.25], "default_float": -2.0}),
            ("strings to strings", words, {"keys_strings": ["red", "blue"], "values_strings": ["R", "B"], "default_string": "?!"}),
            ("integers to strings", numbers, {"keys_int64s": [0, 1, 2], "values_strings": ["zero", "one", "two"]}),
            ("integers to integers", numbers, {"keys_int64s": [0, 1, 2], "values_int64s": [7, 8, 9]}),
            ("floats to integers", np.array([1.5, float("nan"), 2.0], np.float32),
             {"keys_floats": [1.5, 2.5], "values_int64s": [1, 2]}),
            ("floats to floats", np.array([1.5, 2.5, 2.0], np.float32), {"keys_floats": [1.5, 2.5], "values_floats": [1.0, 2.0]})):
        case = Case(f"LabelEncoder of {label}")
        cases.append(case.node("LabelEncoder", [case.input("x", x)], ["y"], domain=ML, **extra).output("y"))
    # Strings are moved and compared as anything else is.
    case = Case("strings moved")
    case.node("Concat", [case.input("x", words), case.constant("w", np.array([["x", "other"]], dtype=object))], ["all"], domain="",
              axis=0)
    case.node("Equal", ["all", case.constant("red", np.array("red", dtype=object))], ["same"], domain="")
    case.node("Where", ["same", case.constant("no", np.array("none", dtype=object)), "all"], ["y"], domain="")
    case.node("Transpose", ["y"], ["t"], domain="")
    cases.append(case.output("same", "t"))
    return cases, {"opset": 19, "ml": 3}


def exports(celer):
    """Models of tests/golden/ml with the inputs and outputs beside them."""
    wrong = []
    for path in sorted(MODELS.glob("*.onnx")):
        with np.load(path.with_suffix(".npz")) as arrays:
            given = {key[3:]: arrays[key] for key in arrays.files if key.startswith("in.")}
            wanted = {key[4:]: arrays[key] for key in arrays.files if key.startswith("out.")}
        for flags in ([], ["--no-optimize"]):
            ours = beside_ort.run_celer(celer, path, given, *flags)
            if isinstance(ours, str):
                wrong.append(f"{path.name}: {ours}")
                continue
            for name, theirs in wanted.items():
                problem = beside_ort.differs(ours[name], theirs, 1e-4, 0)
                if problem:
                    wrong.append(f"{path.name} {' '.join(flags)}: {name}: {problem}")
        print(f"{path.name}: {onnx.load(path).graph.node[0].op_type} ...", flush=True)
    for line in wrong:
        print(f"error: {line}")
    return 1 if wrong else 0


FAMILIES = {"tree classifiers": tree_classifiers, "tree regressors": tree_regressors, "tree ensembles": tree_ensembles,
            "linear": linear, "support vectors": support_vectors, "features": features, "encoders": encoders}

if __name__ == "__main__":
    name = sys.argv[2] if len(sys.argv) > 2 else ""
    status = beside_ort.main(FAMILIES, sys.argv[1], name)
    sys.exit(max(status, exports(sys.argv[1])) if not name or name == "exports" else status)
