"""One storage for all weights of a module."""

from __future__ import annotations

import copy
import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

from protocol.config.run import IQN, PPO, Network, PolicyConfig
from protocol.spaces import Agent, Box, Discrete
from workers.policies.build import Policy, build
from workers.policies.interface import Interface
from workers.policies.networks.quantile_network import IQNPolicy
from workers.policies.tensors.flat_weights import flatten_

AGENT = Agent(name="a", observation=Box(shape=(3, 2), dtype="uint8"), action=Discrete(n=3))


def make(algorithm: PPO | IQN, seed: int = 0) -> Policy:
    return build(Interface.of(AGENT), PolicyConfig(algorithm=algorithm), seed)


@pytest.mark.parametrize("algorithm", [PPO(normalize_observation=True), IQN(dueling=True)])
def test_c5_c8_everything_that_acts_arrives_as_one_unit_U4(algorithm: PPO | IQN) -> None:
    """C5, C8: parameters, target network, normaliser statistics and epsilon are all in the flat bytes."""
    there, here = make(algorithm, 1), make(algorithm, 2)
    with torch.no_grad():
        for tensor in (*there.parameters(), *there.buffers()):
            tensor.add_(1)
    flatten_(here).load(flatten_(there).bytes_view().copy())
    sent = there.state_dict()
    assert set(sent) == {entry.name for entry in flatten_(there).entries}
    assert all(torch.equal(sent[name], tensor) for name, tensor in here.state_dict().items())
    expected = "epsilon" if isinstance(there, IQNPolicy) else "observations.mean"
    assert expected in sent
    assert any(name.startswith("target.") for name in sent) == isinstance(there, IQNPolicy)


def test_c10_loaded_tensors_own_their_storage_and_have_gradients() -> None:
    """C10: after a load nothing is shared with the source, and gradients flow."""
    there, here = make(PPO(), 1), make(PPO(), 2)
    flatten_(here).load(flatten_(there).bytes_view())
    kept = flatten_(here).bytes_view().copy()
    flatten_(there).parameters.fill_(7)
    np.testing.assert_array_equal(flatten_(here).bytes_view(), kept)
    logits, values = here(here.inputs(torch.ones(4, 3, 2, dtype=torch.uint8)))
    (logits.square().sum() + values.square().sum()).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for n, p in here.named_parameters() if "bias" not in n)


def test_a_module_goes_on_computing_the_same_after_it_was_made_flat() -> None:
    module = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)).eval()
    x = torch.randn(4, 3)
    before = module(x)
    weights = flatten_(module)
    assert torch.equal(module(x), before)
    weights.parameters.zero_()
    assert not module(x).any()


def test_parameters_come_first_aligned_and_in_one_float_view() -> None:
    module = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5))
    weights = flatten_(module)
    assert all(entry.offset % 64 == 0 for entry in weights.entries)
    assert weights.nbytes == weights.manifest.nbytes
    trainable = [name for name, _ in module.named_parameters()]
    assert [entry.name for entry in weights.entries][: len(trainable)] == trainable
    assert {entry.name: entry.dtype for entry in weights.entries}["1.num_batches_tracked"] == "<i8"
    total = sum(float(p.detach().sum()) for p in module.parameters())
    assert weights.parameters.sum().item() == pytest.approx(total, abs=1e-5)


def test_the_manifest_is_json_and_its_hash_tells_networks_apart() -> None:
    small, same, wide = (
        make(PPO(), 1),
        make(PPO(), 2),
        build(Interface.of(AGENT), PolicyConfig(model_config=Network(hidden=(8,))), 1),
    )
    weights = flatten_(small)
    first = {"name": weights.entries[0].name, "dtype": "<f4", "shape": list(weights.entries[0].shape), "offset": 0}
    assert json.loads(weights.manifest.text)[0] == first
    assert weights.hash == flatten_(same).hash != flatten_(wide).hash


def test_making_flat_twice_gives_the_same_storage_until_tensors_move() -> None:
    module = nn.Linear(3, 2)
    weights = flatten_(module)
    assert flatten_(module) is weights
    module.weight.data = module.weight.data.clone()
    assert flatten_(module) is not weights
    assert flatten_(module).storage.data_ptr() == module.weight.data_ptr()


def test_bool_and_integer_buffers_survive_a_round_trip() -> None:
    def module(value: int) -> nn.Module:
        holder = nn.Linear(2, 2)
        holder.register_buffer("count", torch.tensor(value))
        holder.register_buffer("mask", torch.tensor([bool(value % 2)] * 3))
        return holder

    there, here = module(5), module(2)
    flatten_(here).load(flatten_(there).bytes_view().copy())
    assert all(torch.equal(a, b) for a, b in zip(there.buffers(), here.buffers(), strict=True))


def test_read_only_bytes_can_be_loaded() -> None:
    policy = make(PPO(), 1)
    source = flatten_(policy).bytes_view().copy()
    source.flags.writeable = False
    flatten_(policy).load(source)


def test_bytes_of_another_network_are_refused() -> None:
    with pytest.raises(ValueError, match="same configuration"):
        flatten_(make(PPO())).load(np.zeros(64, np.uint8))


def test_a_half_precision_parameter_is_refused() -> None:
    with pytest.raises(ValueError, match="must be float32"):
        flatten_(nn.Linear(2, 2).double())


def test_c11_what_is_published_from_host_memory_is_the_module_itself_and_moves_nothing() -> None:
    """C11: no copy is made before the one into the mailbox."""
    module = nn.Linear(3, 2)
    weights = flatten_(module)
    source = weights.source()
    assert isinstance(source, np.ndarray)
    assert source.ctypes.data == module.weight.data_ptr()
    assert module.weight.device.type == "cpu"


def test_c11_publishing_from_a_gpu_copies_what_was_there_at_that_moment_and_moves_nothing(cuda: torch.device) -> None:
    """C11: also while the next update is under way, and from another thread."""
    module = nn.Linear(1024, 1024).to(cuda)
    weights = flatten_(module)
    expected = module.weight.detach().cpu().clone()
    source = weights.source()
    with torch.no_grad():
        module.weight.fill_(7)  # the next update
    torch.cuda.current_stream(cuda).synchronize()  # which is faster than the copy
    assert callable(source)
    with ThreadPoolExecutor(1) as pool:
        out = pool.submit(source).result(20)
    assert module.weight.is_cuda
    assert np.array_equal(out[: 1 << 22].view(np.float32).reshape(1024, 1024), expected.numpy())
    weights.load(np.zeros_like(out))
    assert not module.weight.any()
    with pytest.raises(ValueError, match="source"):
        weights.bytes_view()


def test_half_precision_is_rounded_as_torch_rounds_it() -> None:
    """To nearest, ties to even, infinities and NaN as they are."""
    bits = np.random.default_rng(0).integers(0, 2**32, 400_000, dtype=np.uint32)
    bits[:8] = (0, 0x80000000, 0x7F800000, 0xFF800000, 0x3F808000, 0x3F818000, 0x7F7FFFFF, 0x00000001)
    module = nn.Module()
    module.register_buffer("values", torch.from_numpy(bits.view(np.float32).copy()))
    weights = flatten_(module)
    packed = weights.manifest.pack(weights.bytes_view(), "bf16")
    assert len(packed) == 2 * len(bits)
    back = torch.from_numpy(weights.manifest.unpack(packed, "bf16")[: 4 * len(bits)].view(np.float32).copy())
    expected = torch.from_numpy(bits.view(np.float32).copy()).bfloat16().float()
    assert torch.equal(back.isnan(), expected.isnan())
    assert torch.equal(back[~back.isnan()], expected[~expected.isnan()])


def test_a_copy_of_a_module_is_flat_by_itself() -> None:
    policy = make(PPO())
    weights = flatten_(policy)
    copied = copy.deepcopy(policy)
    theirs = flatten_(copied)
    assert theirs.storage.data_ptr() != weights.storage.data_ptr()
    assert theirs.bytes_view().tobytes() == weights.bytes_view().tobytes()
