"""Weights that are not finite, of absurd size, or of other numbers than their shape says are refused."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_models import linear_model

from metaprobe.checkpoints import UnsafeModel, check_model


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_weights_that_are_not_finite_are_refused_in_raw_data(bad, dtype):
    with pytest.raises(UnsafeModel, match="'W': value 1 of raw_data is NaN or infinite"):
        check_model(linear_model([[1.0], [bad]], dtype=dtype).SerializeToString())


def test_weights_that_are_not_finite_are_refused_in_every_other_place():
    nan = float("nan")
    tensors = [
        helper.make_tensor("t", TensorProto.FLOAT, [2], [1.0, nan]),
        helper.make_tensor("t", TensorProto.DOUBLE, [2], [1.0, nan]),
    ]
    nodes = [helper.make_node("Constant", [], ["c"], value=t) for t in tensors]
    nodes += [helper.make_node("Selu", ["y"], ["c"], alpha=nan)]
    nodes += [helper.make_node("Scaler", ["y"], ["c"], domain="ai.onnx.ml", scale=[1.0, nan])]
    nodes += [
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
