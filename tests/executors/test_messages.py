"""Messages arrive as they were sent, and a broken one is a connection error."""

import socket

import pytest
import torch

from partita.executors.messages import receive, send


def test_values_and_tensors_arrive_bit_for_bit() -> None:
    one, other = socket.socketpair()
    values = {"loss": 0.1 + 0.2, "device": "ann", "none": None, "weight": 2**70}
    tensors = {"limbs": {"u": torch.arange(6).reshape(2, 3)}, "whole": {}}

    send(one, values, tensors)
    one.close()
    message = receive(other)

    assert message is not None
    assert message.values == values
    assert message.tensors["whole"] == {}
    assert torch.equal(message.tensors["limbs"]["u"], tensors["limbs"]["u"])
    assert receive(other) is None
    other.close()


@pytest.mark.parametrize(
    "content",
    [
        b"\x00\x00",
        b"\x00\x00\x00\x09[{}, ",
        b"\x7f\xff\xff\xff",
        b"\x00\x00\x00\x02{}",
        b"\x00\x00\x00\x0215",
        b'\x00\x00\x00\x0d[{},{"u":-1}]',
        b'\x00\x00\x00\x23[{},{"u":99999999999999999999999}]  ',
    ],
)
def test_what_is_no_whole_message_is_a_connection_error(content: bytes) -> None:
    one, other = socket.socketpair()
    one.sendall(content)
    one.close()

    with other, pytest.raises(ConnectionError):
        receive(other)
