"""Helpers of `test_launch.py` and `test_launch_storage.py`."""

from faulty_server import FaultyServer

from metaprobe.papers.systems import SYSTEMS
from metaprobe.records.types import Item

COT = SYSTEMS["zero-shot-cot"]


def items(n: int) -> list[Item]:
    return [
        Item(id=f"i{k}", question=f"What is {k} + {k}?", gold=(str(2 * k),), group=f"g{k}", check="number")
        for k in range(n)
    ]


def asked(server: FaultyServer) -> list[str]:
    """The questions that came."""
    said = [body["messages"][-1]["content"] for body in list(server.bodies)]
    return [content for content in said if "What is" in content]
