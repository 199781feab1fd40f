"""The bytes of a model are read as what they are, or refused with the field and the byte."""

import struct

import pytest
from test_onnx_guard import varint

from metaprobe.checkpoints import UnsafeModel, onnx_wire
from metaprobe.checkpoints.onnx_wire import read_model


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


def test_more_fields_than_any_real_model_has_are_refused(monkeypatch):
    monkeypatch.setattr(onnx_wire, "MAX_FIELDS", 3)
    assert read_model(b"\x08\x09\x12\x01a\x1a\x01b").text("producer_name") == b"a"
    with pytest.raises(UnsafeModel, match="more than 3 fields"):
        read_model(b"\x08\x09\x12\x01a\x1a\x01b\x28\x01")


def test_a_number_that_ends_with_its_message_is_read():
    node = b"\x2a\x05\x15" + struct.pack("<f", 0.5)  # NodeProto.attribute, AttributeProto.f
    graph = b"\x0a" + varint(len(node)) + node
    model = read_model(b"\x3a" + varint(len(graph)) + graph)
    attribute = next(next(next(model.messages()).messages()).messages())
    assert [values.tolist() for values in attribute.array("f", "<f4")] == [[0.5]]
