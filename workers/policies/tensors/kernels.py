"""The inner loops of small networks, each by whichever library does it fastest where the tensors lie.

In host memory numpy multiplies small float32 matrices 10 to 15 % faster than torch (heads of few columns three times)
and computes tanh ten times faster; elsewhere torch does everything. Nothing here is recorded for automatic gradients:
`actor_critic_mlp.py` has its gradients in closed form. Shapes are those of `torch.matmul`.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Activation = Literal["tanh", "relu"]
Array = NDArray[np.float32]


def matmul(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    """`a @ b` written to `out`, which may be a transposed or sliced view."""
    if out.device.type == "cpu":
        np.matmul(a.numpy(), b.numpy(), out=out.numpy())
        return out
    return torch.matmul(a, b, out=out) if out.is_contiguous() else out.copy_(torch.matmul(a, b))


def activate_(x: Tensor, activation: Activation) -> Tensor:
    """The activation, in place."""
    if activation == "relu":
        return x.relu_()
    if x.device.type == "cpu" and x.dtype == torch.float32:
        array = x.numpy()
        np.tanh(array, out=array)
        return x
    return x.tanh_()


def activation_gradient_(gradient: Tensor, y: Tensor, activation: Activation) -> Tensor:
    """Multiplies `gradient`, in place, with the activation's derivative where its result was `y`."""
    if activation == "relu":
        return torch.ops.aten.threshold_backward.grad_input(gradient, y, 0.0, grad_input=gradient)
    return torch.ops.aten.tanh_backward.grad_input(gradient, y, grad_input=gradient)


def sigmoid_(x: NDArray[np.float32]) -> None:
    """1 / (1 + exp(-x)) in place, as tanh(x / 2) / 2 + 1 / 2."""
    x *= 0.5
    np.tanh(x, out=x)
    x *= 0.5
    x += 0.5


def lstm_cell_(gates: Array, before: Array, cell: Array, bent: Array, output: Array) -> None:
    """One step of an LSTM from the sums of its `gates` [..., 4U], in torch's order (enter, forget, new, leave), which
    are bent in place, and the cell `before` [..., U]: writes the `cell`, `bent` (its tanh) and the `output`, which may
    lie where that does."""
    units = before.shape[-1]
    sigmoid_(gates[..., : 2 * units])
    sigmoid_(gates[..., 3 * units :])
    enter, forget, new, leave = (gates[..., i * units : (i + 1) * units] for i in range(4))
    np.tanh(new, out=new)
    np.multiply(forget, before, out=cell)
    cell += enter * new
    np.tanh(cell, out=bent)
    np.multiply(leave, bent, out=output)


def gru_cell_(gates: Array, staying: Array, before: Array, output: Array) -> None:
    """One step of a GRU from what inputs say to its `gates` [..., 3U], in torch's order (reset, update, new), which are
    bent in place, and what the output `before` [..., U] says to them, `staying` [..., 3U]: writes the `output`."""
    units = before.shape[-1]
    both = gates[..., : 2 * units]
    both += staying[..., : 2 * units]
    sigmoid_(both)
    reset, update, new = (gates[..., i * units : (i + 1) * units] for i in range(3))
    new += reset * staying[..., 2 * units :]
    np.tanh(new, out=new)
    np.subtract(before, new, out=output)
    output *= update
    output += new


class _Tanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
        y = activate_(x.detach().clone(), "tanh")
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *gradients: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return gradients[0] * (1 - y * y)


def tanh(x: Tensor) -> Tensor:
    """tanh with a gradient; torch's own while a graph is recorded for other programs."""
    if torch.jit.is_tracing() or torch.compiler.is_compiling():
        return x.tanh()
    return _Tanh.apply(x)


def to_float32(x: Tensor) -> Tensor:
    """`x` in float32, where products are rounded to less."""
    return x if x.dtype == torch.float32 else x.float()
