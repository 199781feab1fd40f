"""The walker over ONNX bytes against the onnx package, on real exports, on planted dangers and on mutated bytes."""

import struct
import warnings

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lightgbm import LGBMClassifier
from onnx import AttributeProto, ModelProto, TensorProto, helper, numpy_helper
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tiny import graph_of

from metaprobe.checkpoints import CheckpointError, UnsafeModel, check_model
from metaprobe.checkpoints.onnx_guard import ALLOWED_DOMAINS
from metaprobe.checkpoints.onnx_wire import MAX_DEPTH, MESSAGE_FIELDS, WireMessage, read_model

DESCRIPTORS = ModelProto.DESCRIPTOR.file.message_types_by_name


def linear_model(weights=((1.0,), (2.0,)), *, dtype=np.float32):
    """y = x W as a ModelProto, to be spoilt by the tests."""
    W = np.array(weights, dtype)
    elem = {"float32": "float", "float64": "double", "float16": "float16"}[W.dtype.name]
    text = f"linear ({elem}[n, {len(W)}] x) => ({elem}[n, {W.shape[1]}] y) {{ y = MatMul(x, W) }}"
    return onnx.load_from_string(graph_of(text, W=W))


def operator_domains(message: WireMessage) -> set[str]:
    """Every operator domain in the model and its subgraphs, as the guard reads it."""
    own = {message.text("domain")} if message.kind in ("NodeProto", "OperatorSetIdProto") else set()
    return own.union(*map(operator_domains, message.messages()))


@pytest.fixture(scope="module")
def exports():
    """Real models by name, as the exporters write them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations inside the exporters are not what is tested
        from onnxmltools import convert_lightgbm
        from onnxmltools.convert.common.data_types import FloatTensorType as LightFloat
        from skl2onnx import to_onnx
        from skl2onnx.common.data_types import StringTensorType

        rng = np.random.default_rng(0)
        X = rng.normal(size=(200, 5)).astype(np.float32)
        y = (X[:, 0] + 0.3 * rng.normal(size=200) > 0).astype(int)
        forest = LGBMClassifier(n_estimators=10, num_leaves=7, n_jobs=1, verbose=-1).fit(X, y)
        linear = make_pipeline(SimpleImputer(), StandardScaler(), LogisticRegression()).fit(X, y)
        words = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(["big cat", "small cat"], [0, 1])
        return {
            "lightgbm": convert_lightgbm(
                forest, initial_types=[("x", LightFloat([None, 5]))], zipmap=False, target_opset=15
            ).SerializeToString(),
            "linear": to_onnx(linear, X[:1], options={"zipmap": False}, target_opset=17).SerializeToString(),
            "words": to_onnx(
                words, initial_types=[("x", StringTensorType([None, 1]))], target_opset=17
            ).SerializeToString(),
        }


def domains_by_onnx(data):
    model = onnx.load_from_string(data)
    found = {opset.domain for opset in model.opset_import}

    def visit(graph):
        for node in graph.node:
            found.add(node.domain)
            for attribute in node.attribute:
                for subgraph in [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])]:
                    visit(subgraph)

    visit(model.graph)
    return found


def nested_in_if(inner_domain):
    """A model whose branches hold an operator of `inner_domain`."""
    out = helper.make_tensor_value_info("b", TensorProto.FLOAT, [1])
    branch = helper.make_graph([helper.make_node("Neg", ["x"], ["b"], domain=inner_domain)], "branch", [], [out])
    graph = helper.make_graph(
        [helper.make_node("If", ["c"], ["b"], then_branch=branch, else_branch=branch)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1]), helper.make_tensor_value_info("c", 9, [])],
        [out],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString()


@pytest.mark.parametrize("message", MESSAGE_FIELDS)
def test_table_agrees_with_the_descriptors_of_the_onnx_package(message):
    outer, _, inner = message.partition(".")
    descriptor = DESCRIPTORS[outer].nested_types_by_name[inner] if inner else DESCRIPTORS[outer]
    wire = {2: "fixed32", 1: "fixed64", 3: "varint", 4: "varint", 5: "varint", 14: "varint", 9: "bytes", 12: "bytes"}
    real = {f.number: f for f in descriptor.fields}
    # Fields of a later onnx are refused unread until the table knows them.
    assert MESSAGE_FIELDS[message].keys() <= real.keys()
    for number, field in MESSAGE_FIELDS[message].items():
        kind = real[number].message_type.full_name.removeprefix("onnx.") if real[number].message_type else None
        assert field.name == real[number].name
        assert field.repeated == (real[number].is_repeated)
        if kind is None:
            assert field.kind == wire[real[number].type]
        else:
            assert field.kind in (kind, "bytes")


def test_every_message_that_can_hold_a_graph_or_tensor_is_walked_or_refused():
    opaque = {
        f"{message}.{field.name}"
        for message, fields in MESSAGE_FIELDS.items()
        for number, field in fields.items()
        if field.kind == "bytes"
        and "." not in message
        and (real := DESCRIPTORS[message].fields_by_number[number]).message_type
        and real.message_type.name != "StringStringEntryProto"
    }
    refused = {"functions", "training_info", "configuration", "device_configurations", "segment", "opaque_type"}
    # Annotations name tensors and hold none.
    assert {name.split(".")[1] for name in opaque} == refused | {"quantization_annotation"}


def test_real_exports_of_standard_operators_pass_and_one_with_a_vendors_operator_is_refused(exports):
    for name, data in exports.items():
        assert operator_domains(read_model(data)) == domains_by_onnx(data)
        if name != "words":
            check_model(data)
            assert operator_domains(read_model(data)) <= ALLOWED_DOMAINS
    with pytest.raises(UnsafeModel, match=r"operator 'Tokenizer' of domain 'com\.microsoft'"):
        check_model(exports["words"])


@pytest.mark.parametrize("domain", ["", "com.microsoft", "my.ops"])
def test_domains_within_subgraphs_are_found(domain):
    data = nested_in_if(domain)
    assert operator_domains(read_model(data)) == domains_by_onnx(data)
    with pytest.raises(UnsafeModel, match="control flow"):
        check_model(data)


def spoil_attribute(model):
    tensor = numpy_helper.from_array(np.ones(1, np.float32))
    tensor.data_location = TensorProto.EXTERNAL
    model.graph.node.append(helper.make_node("Constant", [], ["c"], value=tensor))


def controlled(operator):
    body = helper.make_graph([], "body", [], [])
    return lambda model: model.graph.node.append(helper.make_node(operator, ["y"], ["z"], body=body))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda model: setattr(model.graph.initializer[0], "data_location", TensorProto.EXTERNAL), "outside the file"),
        (lambda model: model.graph.initializer[0].external_data.add(key="location", value="/x"), "outside the file"),
        (spoil_attribute, "outside the file"),
        (lambda model: model.opset_import.append(helper.make_opsetid("com.microsoft", 1)), r"domain 'com\.microsoft'"),
        (lambda model: model.functions.add(), "functions"),
        (lambda model: model.training_info.add(), "training"),
        *[(controlled(operator), "control flow") for operator in ("Loop", "Scan", "SequenceMap")],
    ],
)
def test_what_could_do_more_than_compute_is_refused_wherever_it_stands(spoil, said):
    model = linear_model()
    check_model(model.SerializeToString())
    spoil(model)
    with pytest.raises(UnsafeModel, match=said):
        check_model(model.SerializeToString())


def test_nesting_deeper_than_any_real_model_is_refused():
    data = b""
    for _ in range(MAX_DEPTH + 1):  # a type of a sequence of a type of a sequence ...
        inner = b"\x0a" + varint(len(data)) + data
        data = b"\x22" + varint(len(inner)) + inner
    value = b"\x12" + varint(len(data)) + data
    graph = b"\x5a" + varint(len(value)) + value
    with pytest.raises(UnsafeModel, match="nest deeper"):
        read_model(b"\x3a" + varint(len(graph)) + graph)


def tensor_of(data):
    """The tensor that is all there is in a model, of these bytes."""
    weights = b"\x2a" + varint(len(data)) + data
    graph = next(read_model(b"\x3a" + varint(len(weights)) + weights).messages())
    return next(graph.messages())


def test_numbers_that_do_not_fill_their_bytes_and_shapes_without_end_are_refused():
    packed = tensor_of(b"\x22\x08" + struct.pack("<ff", 0.5, 0.25))
    assert [values.tolist() for values in packed.array("float_data", "<f4")] == [[0.5, 0.25]]
    with pytest.raises(UnsafeModel, match="float_data: 7 bytes do not divide into values of 4"):
        list(tensor_of(b"\x22\x07" + bytes(7)).array("float_data", "<f4"))
    assert tensor_of(b"\x0a\x40" + b"\x02" * 64).integers("dims") == [2] * 64
    with pytest.raises(UnsafeModel, match="dims has more than 64 values"):
        tensor_of(b"\x0a\x41" + b"\x02" * 65).integers("dims")


def varint(number):
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "has no graph, ir_version, opset_import"),
        (b"\x08\x09", "has no graph, opset_import"),
        (b"not a model at all", "no field 13"),
        (b"\x3a\x10\x00", "claims 16 bytes"),
        (b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "claims 18446744073709551615 bytes"),
        (b"\x08" + b"\xff" * 11, "overlong"),
        (b"\x08" + b"\x80" * 10 + b"\x00", "overlong"),  # ten bytes hold 64 bits: the runtime reads no more either
        (b"\x08\x09\x08\x09", "ir_version occurs twice"),
        (b"\x3b\x3c", "wire type 3"),
        (b"\x0d\x00\x00\x00\x00", "wire type 5"),
        (b"\x0a\x02\x08\x09", "wire type 2"),
        (b"\xa0\x06\x00", "no field 100"),
        (b"\x08", "a number is cut off or overlong"),
        (b"\x3a\x04\x2a\x02\x25\x00", r"TensorProto.float_data is cut off or overlong \(byte 4\)"),
        (b"\x3a\x08\x0a\x06\x2a\x04\x15\x00\x00\x00", r"AttributeProto.f is cut off \(byte 6\)"),
    ],
)
def test_bytes_that_are_no_model_are_named_as_such(data, message):
    with pytest.raises(UnsafeModel, match=message):
        check_model(data)


def test_the_runtimes_own_format_is_refused_though_the_bytes_are_also_onnx():
    model = linear_model()
    model.ir_version = 9  # two bytes, then the tag and length of producer_name: its text begins at byte 4
    model.producer_name = "ORTM"
    data = model.SerializeToString(deterministic=True)
    assert data[4:8] == b"ORTM"
    assert onnx.load_from_string(data).producer_name == "ORTM"
    with pytest.raises(UnsafeModel, match="own format"):
        check_model(data)


@given(
    values=st.lists(st.floats(width=32, allow_nan=False), max_size=20), ints=st.lists(st.integers(-(2**63), 2**63 - 1))
)
def test_numbers_read_unpacked_are_those_that_were_written(values, ints):
    attribute = helper.make_node("Op", [], []).attribute.add()
    assert isinstance(attribute, AttributeProto)
    attribute.floats.extend(values)
    attribute.ints.extend(ints[:60])
    model = linear_model()
    model.graph.node[0].attribute.append(attribute)
    read = next(
        a for g in read_model(model.SerializeToString()).messages() if g.kind == "GraphProto" for n in g.messages()
        if n.kind == "NodeProto" for a in n.messages()
    )  # fmt: skip
    floats = [x for chunk in read.array("floats", "<f4") for x in chunk.tolist()]
    assert floats == values
    assert read.integers("ints") == ints[:60]


@settings(max_examples=150)
@given(
    which=st.sampled_from(["lightgbm", "linear", "words"]),
    edits=st.lists(
        st.tuples(st.floats(0, 1, exclude_max=True), st.booleans(), st.binary(min_size=1, max_size=4)), max_size=6
    ),
)
def test_mutated_bytes_are_read_as_onnx_reads_them_or_refused_cleanly(exports, which, edits):
    data = bytearray(exports[which])
    for position, insert, piece in edits:
        at = int(position * len(data))
        data[at : at if insert else at + len(piece)] = piece
    try:
        domains = operator_domains(read_model(bytes(data)))
        check_model(bytes(data))
    except CheckpointError:
        return
    assert domains == domains_by_onnx(bytes(data)) <= ALLOWED_DOMAINS


@settings(max_examples=100)
@given(st.binary(max_size=300))
def test_random_bytes_are_refused_cleanly(data):
    with pytest.raises(UnsafeModel):
        check_model(data)


# Weights that are not finite, of absurd size, or of other numbers than their shape says


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_weights_that_are_not_finite_are_refused_in_raw_data(bad, dtype):
    with pytest.raises(UnsafeModel, match="'W': value 1 of raw_data is NaN or infinite"):
        check_model(linear_model([[1.0], [bad]], dtype=dtype).SerializeToString())


def test_weights_that_are_not_finite_are_refused_in_every_other_place():
    nan = float("nan")
    tensors = [helper.make_tensor("t", elem, [2], [1.0, nan]) for elem in (TensorProto.FLOAT, TensorProto.DOUBLE)]
    nodes = [helper.make_node("Constant", [], ["c"], value=t) for t in tensors]
    nodes += [
        helper.make_node("Selu", ["y"], ["c"], alpha=nan),
        helper.make_node("Scaler", ["y"], ["c"], domain="ai.onnx.ml", scale=[1.0, nan]),
        helper.make_node("TreeEnsembleRegressor", ["y"], ["c"], domain="ai.onnx.ml", target_weights=[1.0, nan]),
        helper.make_node("TreeEnsembleRegressor", ["y"], ["c"], nodes_values=[1.0, nan]),  # not that domain's operator
    ]
    for node in nodes:
        model = linear_model()
        model.graph.node.append(node)
        with pytest.raises(UnsafeModel, match="NaN or infinite"):
            check_model(model.SerializeToString())


def test_infinite_thresholds_of_trees_and_nan_for_the_imputer_pass():
    model = linear_model()
    model.graph.node.append(
        helper.make_node("TreeEnsembleRegressor", ["y"], ["c"], domain="ai.onnx.ml", nodes_values=[np.inf, 1.0])
    )
    model.graph.node.append(
        helper.make_node("Imputer", ["y"], ["d"], domain="ai.onnx.ml", replaced_value_float=float("nan"))
    )
    check_model(model.SerializeToString())


def test_tensors_of_absurd_size_or_of_a_type_that_cannot_be_checked_are_refused():
    model = linear_model()
    for kind in (TensorProto.COMPLEX64, TensorProto.STRING, TensorProto.BFLOAT16, TensorProto.INT4, TensorProto.INT16):
        model.graph.initializer[0].data_type = kind
        with pytest.raises(UnsafeModel, match=f"element type {kind}; expected numbers"):
            check_model(model.SerializeToString())
    for dims in ([10**5, 10**5], [2**62, 2**62], [-1]):
        model = linear_model()
        del model.graph.initializer[0].dims[:]
        model.graph.initializer[0].dims.extend(dims)
        with pytest.raises(UnsafeModel, match="at most 1000000000 elements"):
            check_model(model.SerializeToString())


def test_sparse_weights_are_refused_as_they_become_dense_ones():
    sparse = onnx.SparseTensorProto(dims=[10**9])
    for spoil in (
        lambda graph: graph.sparse_initializer.append(sparse),
        lambda graph: graph.node.append(helper.make_node("Constant", [], ["c"], sparse_value=sparse)),
    ):
        model = linear_model()
        spoil(model.graph)
        with pytest.raises(UnsafeModel, match="sparse"):
            check_model(model.SerializeToString())


ELEMENT_TYPES = [np.float32, np.float64, np.float16, np.int8, np.uint8, np.int32, np.int64, bool]


def tensor(dtype, *, raw):
    values = np.array([0, 1, 100, 1, 0, 1], np.float64).astype(dtype)
    if raw:
        return numpy_helper.from_array(values, "w")
    return helper.make_tensor("w", helper.np_dtype_to_tensor_dtype(values.dtype), [6], values.tolist())


@pytest.mark.parametrize("dtype", ELEMENT_TYPES)
@pytest.mark.parametrize("raw", [True, False])
def test_tensors_hold_exactly_as_many_numbers_as_their_shape_says(dtype, raw):
    whole = tensor(dtype, raw=raw or dtype == np.float16)  # half floats are read from raw_data only
    for dims in ([6], [2, 3], [5], [7], [10**8]):
        model = linear_model()
        held = model.graph.initializer.add()
        held.CopyFrom(whole)
        del held.dims[:]
        held.dims.extend(dims)
        if np.prod(dims) == 6:
            check_model(model.SerializeToString())
            continue
        with pytest.raises(UnsafeModel, match=r"'w' of .* elements holds"):
            check_model(model.SerializeToString())


def test_numbers_stand_in_one_place():
    model = linear_model()
    tensor = model.graph.initializer.add()
    tensor.data_type, tensor.name = TensorProto.INT32, "w"
    tensor.dims.append(2)
    tensor.raw_data = bytes(8)
    check_model(model.SerializeToString())
    tensor.int32_data.extend([0, 0])
    with pytest.raises(UnsafeModel, match="'w' of 2 elements"):
        check_model(model.SerializeToString())
    tensor.ClearField("raw_data")
    check_model(model.SerializeToString())
    tensor.ClearField("int32_data")
    tensor.float_data.extend([0, 0])
    with pytest.raises(UnsafeModel, match="'w' of 2 elements holds 0"):
        check_model(model.SerializeToString())


def test_shapes_of_values_are_held_to_the_same_size():
    model = linear_model()
    shape = model.graph.input[0].type.tensor_type.shape
    del shape.dim[:]
    for length in (0, -1, 10**9):  # -1 and 0: any
        shape.dim.add().dim_value = length
    check_model(model.SerializeToString())
    shape.dim.add().dim_value = 2
    with pytest.raises(UnsafeModel, match="at most 1000000000 elements"):
        check_model(model.SerializeToString())
