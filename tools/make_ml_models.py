#!/usr/bin/env python3
"""Makes tests/golden/ml: small models of scikit-learn, LightGBM and XGBoost as ONNX files, with inputs and the outputs
that ONNX Runtime gives for them (in.NAME and out.NAME in an .npz).

  pip install scikit-learn==1.9.1 skl2onnx==1.20.0 onnxmltools==1.16.0 lightgbm==4.7.0 xgboost==3.2.0 onnxruntime==1.31.1
  python tools/make_ml_models.py tests/golden/ml

Not part of the tests: they read what it made. --large FOLDER makes forests for timing instead."""
import argparse
import pathlib

import numpy as np
import onnx.helper
import onnxruntime as ort
from onnx import load_model_from_string
from skl2onnx import convert_sklearn, update_registered_converter
from skl2onnx.common.data_types import FloatTensorType, Int64TensorType, StringTensorType
from skl2onnx.common.shape_calculator import (calculate_linear_classifier_output_shapes,
                                              calculate_linear_regressor_output_shapes)
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.ensemble import (AdaBoostClassifier, ExtraTreesRegressor, GradientBoostingClassifier,
                              GradientBoostingRegressor, HistGradientBoostingClassifier, HistGradientBoostingRegressor,
                              IsolationForest, RandomForestClassifier, RandomForestRegressor)
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge, SGDClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (Binarizer, KBinsDiscretizer, MaxAbsScaler, MinMaxScaler, Normalizer, OneHotEncoder,
                                   OrdinalEncoder, PolynomialFeatures, RobustScaler, StandardScaler)
from sklearn.svm import SVC, SVR
from sklearn.tree import DecisionTreeClassifier

OPSETS = {"": 17, "ai.onnx.ml": 3}

# Newer protobuf does not take the booleans that skl2onnx gives for integers (HistGradientBoosting).
make_attribute = onnx.helper.make_attribute
onnx.helper.make_attribute = lambda key, value, *rest, **more: make_attribute(
    key, [int(v) for v in value] if isinstance(value, list) and any(isinstance(v, (bool, np.bool_)) for v in value) else value,
    *rest, **more)


def learned():
    """Name, model, rows of features."""
    iris, cancer, sugar = load_iris(), load_breast_cancer(), load_diabetes()
    names = iris.target_names[iris.target]
    three, two = iris.data.astype(np.float32), cancer.data.astype(np.float32)
    reals = sugar.data.astype(np.float32)
    few = {"n_estimators": 5, "max_depth": 3, "random_state": 0}
    yield "random_forest_strings", RandomForestClassifier(**few).fit(three, names), three
    yield "random_forest_two", RandomForestClassifier(**few).fit(two, cancer.target), two
    yield "extra_trees", ExtraTreesRegressor(**few).fit(reals, sugar.target), reals
    yield "random_forest_targets", RandomForestRegressor(**few).fit(reals, np.stack([sugar.target, -sugar.target], 1)), reals
    yield "gradient_boosting_two", GradientBoostingClassifier(**few).fit(two, cancer.target), two
    yield "gradient_boosting_three", GradientBoostingClassifier(**few).fit(three, names), three
    yield "gradient_boosting", GradientBoostingRegressor(**few).fit(reals, sugar.target), reals
    holes = two.copy()
    holes[::7, ::3] = np.nan
    hist = {"max_iter": 5, "max_depth": 3, "random_state": 0}
    yield "hist_two", HistGradientBoostingClassifier(**hist).fit(holes, cancer.target), holes
    yield "hist_three", HistGradientBoostingClassifier(**hist).fit(three, iris.target), three
    yield "hist", HistGradientBoostingRegressor(**hist).fit(reals, sugar.target), reals
    yield "decision_tree", DecisionTreeClassifier(max_depth=3, random_state=0).fit(three, names), three
    yield "ada_boost", AdaBoostClassifier(n_estimators=3, random_state=0).fit(three, iris.target), three
    yield "logistic_two", make_pipeline(StandardScaler(), LogisticRegression()).fit(two, cancer.target), two
    yield "logistic_three", make_pipeline(MinMaxScaler(), LogisticRegression()).fit(three, names), three
    yield "sgd", make_pipeline(StandardScaler(), SGDClassifier(loss="log_loss", random_state=0)).fit(two, cancer.target), two
    yield "linear", make_pipeline(RobustScaler(), LinearRegression()).fit(reals, sugar.target), reals
    yield "ridge", make_pipeline(MaxAbsScaler(), PolynomialFeatures(2), Ridge()).fit(reals[:, :4], sugar.target), reals[:, :4]
    yield "svc_three", make_pipeline(StandardScaler(), SVC(random_state=0)).fit(three[::3], names[::3]), three
    yield "svc_two", make_pipeline(StandardScaler(), SVC(kernel="poly")).fit(two[::9], cancer.target[::9]), two
    yield "svr", make_pipeline(StandardScaler(), SVR(C=10)).fit(reals[::9], sugar.target[::9]), reals
    yield "naive_bayes", GaussianNB().fit(three, names), three
    yield "neighbors", KNeighborsClassifier(3).fit(three[::5], iris.target[::5]), three
    yield "mlp", make_pipeline(StandardScaler(), MLPClassifier((8,), max_iter=50, random_state=0)).fit(three, names), three
    yield "imputer", make_pipeline(SimpleImputer(), Normalizer(), Binarizer(threshold=0.05),
                                   LogisticRegression()).fit(holes, cancer.target), holes
    yield "bins", make_pipeline(KBinsDiscretizer(3, encode="ordinal", quantile_method="averaged_inverted_cdf"),
                                LogisticRegression()).fit(three, iris.target), three
    yield "isolation_forest", IsolationForest(n_estimators=5, random_state=0, max_samples=32).fit(three), three


def columns():
    """Columns of words and of numbers, each with its own input."""
    random = np.random.default_rng(3)
    city = random.choice(["Paris", "Rome", "Oslo"], 60)
    size, age = random.choice(["small", "large"], 60), random.normal(40, 10, 60).astype(np.float32)
    floors = random.integers(1, 9, 60)
    import pandas  # only here
    table = pandas.DataFrame({"city": city, "size": size, "age": age, "floors": floors})
    target = np.where((city == "Rome") ^ (age > 40), "yes", "no")
    encode = ColumnTransformer([("words", OneHotEncoder(handle_unknown="ignore"), ["city"]),
                                ("sizes", OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1), ["size"]),
                                ("numbers", StandardScaler(), ["age", "floors"])])
    model = make_pipeline(encode, LogisticRegression()).fit(table, target)
    types = [("city", StringTensorType([None, 1])), ("size", StringTensorType([None, 1])), ("age", FloatTensorType([None, 1])),
             ("floors", Int64TensorType([None, 1]))]
    onnx_model = convert_sklearn(model, initial_types=types, target_opset=OPSETS)
    city[5] = "Atlantis"  # a word that it never saw
    return onnx_model, {"city": city[:8, None].astype(object), "size": size[:8, None].astype(object), "age": age[:8, None],
                        "floors": floors[:8, None].astype(np.int64)}


def boosted():
    from lightgbm import LGBMClassifier, LGBMRegressor
    from onnxmltools.convert.lightgbm.operator_converters.LightGbm import convert_lightgbm
    from onnxmltools.convert.xgboost.operator_converters.XGBoost import convert_xgboost
    from xgboost import XGBClassifier, XGBRegressor
    for model, converter, kind in ((LGBMClassifier, convert_lightgbm, "classifier"), (LGBMRegressor, convert_lightgbm, "regressor"),
                                   (XGBClassifier, convert_xgboost, "classifier"), (XGBRegressor, convert_xgboost, "regressor")):
        shapes = calculate_linear_classifier_output_shapes if kind == "classifier" else calculate_linear_regressor_output_shapes
        options = {"nocl": [True, False], "zipmap": [True, False, "columns"]} if kind == "classifier" else \
            ({"split": None} if model is LGBMRegressor else None)
        update_registered_converter(model, model.__name__, shapes, converter, **({"options": options} if options else {}))
    iris, cancer, sugar = load_iris(), load_breast_cancer(), load_diabetes()
    few = {"n_estimators": 5, "max_depth": 3}
    three, two, reals = (d.data.astype(np.float32) for d in (iris, cancer, sugar))
    yield "lightgbm_two", LGBMClassifier(verbose=-1, **few).fit(two, cancer.target), two
    yield "lightgbm_three", LGBMClassifier(verbose=-1, **few).fit(three, iris.target), three
    yield "lightgbm", LGBMRegressor(verbose=-1, **few).fit(reals, sugar.target), reals
    yield "xgboost_two", XGBClassifier(**few).fit(two, cancer.target), two
    yield "xgboost_three", XGBClassifier(**few).fit(three, iris.target), three
    yield "xgboost", XGBRegressor(**few).fit(reals, sugar.target), reals


def plain(name, result, model):
    """Maps of a ZipMap as the scores of its columns, in the order of the file."""
    if not isinstance(result, list):
        return np.array(result, dtype=str) if np.asarray(result).dtype.kind in "OU" else np.asarray(result)
    node = next(n for n in model.graph.node if name in n.output)
    labels = next(a for a in node.attribute if a.name.startswith("classlabels"))
    keys = [k.decode() for k in labels.strings] or list(labels.ints)
    return np.array([[row[k] for k in keys] for row in result], np.float32)


def store(folder, name, model, feeds):
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = [x.name for x in session.get_outputs()]
    results = session.run(None, feeds)
    arrays = {"in." + key: np.array(x, dtype=str) if x.dtype == object else x for key, x in feeds.items()}
    arrays |= {"out." + key: plain(key, x, model) for key, x in zip(wanted, results)}
    (folder / f"{name}.onnx").write_bytes(model.SerializeToString())
    np.savez(folder / f"{name}.npz", **arrays)
    print(f"{name}: {len(model.SerializeToString())} bytes, {sorted({n.op_type for n in model.graph.node})}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--large", action="store_true")
    flags = parser.parse_args()
    flags.folder.mkdir(parents=True, exist_ok=True)
    if flags.large:
        random = np.random.default_rng(0)
        x = random.normal(size=(4000, 20)).astype(np.float32)
        y = (x[:, 0] * x[:, 1] + x[:, 2] > 0).astype(np.int64) + (x[:, 3] > 1)
        rows = random.normal(size=(1000, 20)).astype(np.float32)
        for name, model in (("forest", RandomForestClassifier(100, max_depth=8, random_state=0, n_jobs=2).fit(x, y)),
                            ("boosted", GradientBoostingRegressor(n_estimators=100, max_depth=8, random_state=0).fit(x, y))):
            store(flags.folder, name, convert_sklearn(model, initial_types=[("x", FloatTensorType([None, 20]))],
                                                      target_opset=OPSETS), {"x": rows})
        return
    for name, model, rows in [*learned(), *boosted()]:
        types = [("x", FloatTensorType([None, rows.shape[1]]))]
        try:
            converted = convert_sklearn(model, initial_types=types, target_opset=OPSETS)
        except Exception as error:
            print(f"{name}: not converted: {str(error).splitlines()[0]}")
            continue
        store(flags.folder, name, load_model_from_string(converted.SerializeToString()), {"x": rows[::13][:12]})
    model, feeds = columns()
    store(flags.folder, "columns", model, feeds)


if __name__ == "__main__":
    main()
