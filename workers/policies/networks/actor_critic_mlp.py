"""Two perceptrons side by side, one for the policy and one for the value, or one for both, with their gradient.

In flows: inputs [N, I] and the parameters. Out flows: logits [A, N] (actions first: reductions over few actions then
run along rows) and values [N]. The gradient is written out, because recording it costs more than computing it.

Legend: `N` rows, `I` inputs, `S` towers (2, or 1 whose layers policy and value share), `H` units of a hidden layer,
`A` actions.

Parameters, in order: first layer weight [I, S*H] and bias [S*H] (policy's columns first, one product for both); each
further hidden layer weight [S, H, H'] and bias [S, 1, H']; policy head [H', A], [A]; value head [H', 1], [1]. With a
leading dimension in front of each and of the inputs they are those of several policies (stacked_actor_critic.py),
computed as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from workers.policies.tensors.kernels import Activation, activate_, activation_gradient_, matmul, tanh, to_float32
from workers.policies.tensors.scratch import ScratchBuffers


def hidden_layers(
    x: Tensor, parameters: Sequence[Tensor], activation: Activation, scratch: ScratchBuffers
) -> list[Tensor]:
    """What each hidden layer gives, [S, N, H] (policy first, value last) a layer; the input itself if there is none.

    They lie in `scratch`.
    """
    if len(parameters) == 4:
        return [x.unsqueeze(-3)]
    lead, many = x.shape[:-1], _many(parameters)
    both = matmul(x, parameters[0], scratch.take("layer 0", (*lead, parameters[0].shape[-1]), x)).add_(parameters[1])
    layers = [_apart(activate_(both, activation), many)]
    for weight, bias in zip(parameters[2:-4:2], parameters[3:-4:2], strict=True):
        space = scratch.take(f"layer {len(layers)}", (*lead[:-1], many, lead[-1], weight.shape[-1]), x)
        z = matmul(layers[-1], weight, space).add_(bias)
        layers.append(activate_(z, activation))
    return layers


def evaluate(
    x: Tensor, parameters: Sequence[Tensor], activation: Activation, scratch: ScratchBuffers
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """logits [A, N], values [N] and the hidden layers' outputs (in `scratch`), without recording anything."""
    policy, policy_bias, value, value_bias = parameters[-4:]
    layers = hidden_layers(x, parameters, activation, scratch)
    top = layers[-1]
    *lead, rows, _ = x.shape
    logits = matmul(policy.mT, top.select(-3, 0).mT, x.new_empty(*lead, policy.shape[-1], rows))
    values = matmul(top.select(-3, -1), value, x.new_empty(*lead, rows, 1)).add_(value_bias)
    return logits.add_(policy_bias[..., None]), values[..., 0], layers


def actor_critic_mlp(
    x: Tensor, parameters: Sequence[Tensor], activation: Activation, scratch: ScratchBuffers
) -> tuple[Tensor, Tensor]:
    """logits [A, N] and values [N] with gradients for `parameters`, and for `x` where it wants one.

    `x` and `scratch` must stay untouched until the gradient is taken: one evaluation, one `backward`.
    """
    if torch.compiler.is_compiling() or torch.is_autocast_enabled(x.device.type):
        return two_towers(x, parameters, activation)
    return _Towers.apply(x, activation, scratch, *parameters)


def two_towers(x: Tensor, parameters: Sequence[Tensor], activation: Activation) -> tuple[Tensor, Tensor]:
    """logits [A, N] and values [N]: the definition, by torch's own operations, which autocast rounds, torch.compile
    understands and other programs repeat."""
    policy, policy_bias, value, value_bias = parameters[-4:]
    top, many = x.unsqueeze(-3), _many(parameters)
    for index in range(0, len(parameters) - 4, 2):
        weight, bias = parameters[index : index + 2]
        y = _added(top, weight, bias) if index else _added(x, weight, bias.view(*weight.shape[:-2], 1, -1))
        y = tanh(y) if activation == "tanh" else y.relu()
        top = y if index else _apart(y, many)
    logits = to_float32(_added(top.select(-3, 0), policy, policy_bias[..., None, :])).mT
    return logits, to_float32(_added(top.select(-3, -1), value, value_bias.view(*value.shape[:-2], 1, 1)))[..., 0]


def _added(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`x @ weight + bias` [..., N, H], with bias [..., 1, H]."""
    lead, many = weight.shape[:-2], prod(weight.shape[:-2])
    flat = (tensor.reshape(many, *tensor.shape[-2:]) for tensor in (bias, x, weight))
    return torch.baddbmm(*flat).view(*lead, *x.shape[-2:-1], weight.shape[-1])


class _Towers(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, activation: Activation, scratch: ScratchBuffers, *parameters: Tensor
    ) -> tuple[Tensor, Tensor]:
        inner = [parameter.detach() for parameter in parameters]
        logits, values, ctx.layers = evaluate(x.detach(), inner, activation, scratch)
        ctx.x, ctx.parameters, ctx.activation, ctx.scratch = x.detach(), inner, activation, scratch
        return logits, values

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        parameters: list[Tensor] = ctx.parameters
        d_logits, d_values = outputs[0].contiguous(), outputs[1].contiguous()[..., None]
        layers: list[Tensor] = ctx.layers
        gradients = _heads(layers[-1], d_logits, d_values, parameters)
        if len(parameters) == 4:
            d_x = d_logits.mT @ parameters[0].mT + d_values @ parameters[2].mT if ctx.needs_input_grad[0] else None
            return (d_x, None, None, *gradients)
        d_layers = [_like(layer, f"gradient {i}", ctx.scratch) for i, layer in enumerate(layers)]
        d_policy, d_value = d_layers[-1].select(-3, 0), d_layers[-1].select(-3, -1)
        matmul(d_logits.mT, parameters[-4].mT, d_policy)
        if _many(parameters) == 1:
            d_value.addcmul_(d_values, parameters[-2].mT)
        else:
            torch.mul(d_values, parameters[-2].mT, out=d_value)
        hidden, d_both = _hidden_gradients(ctx.x, d_layers, layers, parameters, ctx.activation)
        d_x = matmul(d_both, parameters[0].mT, torch.empty_like(ctx.x)) if ctx.needs_input_grad[0] else None
        return (d_x, None, None, *hidden, *gradients)


def _heads(top: Tensor, d_logits: Tensor, d_values: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    policy, _, value, value_bias = parameters[-4:]
    d_policy = matmul(d_logits, top.select(-3, 0), top.new_empty(policy.mT.shape)).mT
    d_value = matmul(top.select(-3, -1).mT, d_values, torch.empty_like(value))
    return [d_policy, d_logits.sum(-1), d_value, d_values.sum(-2).view(value_bias.shape)]


def _hidden_gradients(
    x: Tensor, d_layers: list[Tensor], layers: list[Tensor], parameters: Sequence[Tensor], activation: Activation
) -> tuple[list[Tensor], Tensor]:
    """Gradients of the hidden layers' parameters, and of the first layer before its activation. `d_layers` is memory
    for the gradients of the layers' outputs, each in its layer's own memory order; the last is given."""
    gradients: list[Tensor] = []
    for index in range(len(layers) - 1, 0, -1):
        d_layer, below, weight = d_layers[index], layers[index - 1], parameters[2 * index]
        activation_gradient_(d_layer, layers[index], activation)
        d_weight = matmul(below.mT, d_layer, torch.empty_like(weight))
        gradients[:0] = [d_weight, d_layer.sum(-2, keepdim=True)]
        matmul(d_layer, weight.mT, d_layers[index - 1])
    both, d_both = _together(layers[0]), _together(d_layers[0])
    activation_gradient_(d_both, both, activation)
    d_first = matmul(x.mT, d_both, torch.empty_like(parameters[0]))
    return [d_first, d_both.sum(-2).view(parameters[1].shape), *gradients], d_both


def _many(parameters: Sequence[Tensor]) -> int:
    """S, where there are hidden layers."""
    return parameters[2].shape[-3] if len(parameters) > 6 else parameters[0].shape[-1] // parameters[-4].shape[-2]


def _apart(both: Tensor, many: int) -> Tensor:
    """[N, S*H] seen as [S, N, H]."""
    return both.view(*both.shape[:-1], many, -1).transpose(-3, -2)


def _together(apart: Tensor) -> Tensor:
    """[S, N, H] in the first layer's memory order seen as [N, S*H]."""
    side = apart.transpose(-3, -2)
    return side.reshape(*side.shape[:-2], -1)


def _like(layer: Tensor, name: str, scratch: ScratchBuffers) -> Tensor:
    """Scratch memory of a layer's shape and memory order."""
    if layer.is_contiguous():
        return scratch.take(name, tuple(layer.shape), layer)
    *lead, many, rows, width = layer.shape
    return _apart(scratch.take(name, (*lead, rows, many * width), layer), many)
