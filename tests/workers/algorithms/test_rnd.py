"""Random network distillation against numbers worked out by hand (Burda et al. 2018, section 2)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from protocol.config.run import RND, AuxiliaryConfig
from protocol.errors import TrainingFault
from tests.faults import raises
from workers.algorithms.common.batches import ObservationBatch
from workers.algorithms.rnd import RNDUpdate, discounted_sums
from workers.policies.networks.rnd_networks import CLIP, RNDNetworks

CONFIG = AuxiliaryConfig(algorithm=RND(features=8, minibatches=2), learning_rate=1e-3)


def networks(shape: tuple[int, ...] = (3,), features: int = 8) -> RNDNetworks:
    """With initial weights that are always the same."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return RNDNetworks(shape, features, (16,), "relu")


def seen(observation: Tensor, final: Tensor | None = None, valid: int | None = None) -> ObservationBatch:
    """One segment whose rows, with the one behind them, are `observation` [T + 1, *shape]; `final` [k, *shape]."""
    entries = 2
    kept = torch.zeros(1, entries, *observation.shape[1:])
    row = torch.full((1, entries), -1)
    if final is not None:
        kept[0, : len(final)], row[0, : len(final)] = final, torch.arange(len(final))
    return ObservationBatch(
        observation[None], torch.tensor([len(observation) - 1 if valid is None else valid]), kept, row
    )


def by_hand(network: nn.Module, x: np.ndarray) -> np.ndarray:
    """A perceptron of rectified layers and a linear one, in numpy."""
    linear = [module for module in network.modules() if isinstance(module, nn.Linear)]
    for number, layer in enumerate(linear):
        x = x @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()
        x = np.maximum(x, 0) if number < len(linear) - 1 else x
    return x


def test_the_error_is_the_mean_square_of_the_difference_of_features_by_hand() -> None:
    both = networks()
    x = np.array([[0.5, -1, 2], [3, 0, -0.25]], np.float32)
    expected = ((by_hand(both.predictor, x) - by_hand(both.target, x)) ** 2).mean(1)
    assert len([m for m in both.predictor.modules() if isinstance(m, nn.Linear)]) == 3
    np.testing.assert_allclose(both(torch.from_numpy(x)).detach(), expected, atol=1e-5)


def test_observations_are_normalised_by_all_that_was_seen_and_cut_at_five() -> None:
    both = networks((2,))
    rows = torch.tensor([[0.0, 10.0], [2.0, 10.0], [4.0, 10.0]])
    both.observations.update(rows)
    deviation = (8 / 3) ** 0.5
    shown = both.inputs(torch.tensor([[5.0, 10.0], [-100.0, 10.001]]))
    np.testing.assert_allclose(shown, [[3 / deviation, 0], [-CLIP, CLIP]], atol=1e-5)  # a constant: spread 1e-4


def test_the_unit_of_the_bonus_is_the_spread_of_discounted_sums_by_hand() -> None:
    both, gamma = networks((1,)), 0.5
    update = RNDUpdate(both, AuxiliaryConfig(algorithm=RND(features=8, minibatches=1, gamma=gamma)))
    rows = torch.tensor([[1.0], [5.0], [2.0], [0.0]])
    initial = networks((1,))
    initial.observations.update(rows[:3])
    error = initial(initial.inputs(rows[:3])).detach().double().numpy()
    update.update(seen(rows))
    sums = [error[0], error[1] + gamma * error[0], error[2] + gamma * (error[1] + gamma * error[0])]
    assert float(both.returns.std) == pytest.approx(np.std(sums), rel=1e-5)
    raw = both(both.inputs(rows)).detach().numpy()
    np.testing.assert_allclose(both.bonus(rows), raw / np.std(sums), rtol=1e-4)


def test_discounted_sums_go_forwards_in_time() -> None:
    found = discounted_sums(torch.tensor([[1.0, 0.0], [0.0, 2.0], [4.0, 0.0]]), 0.5)
    assert found.tolist() == [[1, 0], [0.5, 2], [4.25, 1]]


def test_the_bonus_is_nothing_before_anything_was_seen_and_has_the_lead_of_its_observations() -> None:
    both = networks((2, 2))
    observation = torch.rand(3, 4, 2, 2)
    assert not both.bonus(observation).any()
    both.observations.update(torch.rand(10, 4))
    assert both.bonus(observation).shape == (3, 4)
    assert (both.bonus(observation) > 0).all()
    whole = (observation * 255).to(torch.uint8)
    torch.testing.assert_close(both.bonus(whole), both.bonus(whole.float()))


def test_what_is_familiar_falls_and_what_is_new_stays_high() -> None:
    both = networks((4,))
    update = RNDUpdate(both, AuxiliaryConfig(algorithm=RND(features=8, minibatches=2, epochs=4), learning_rate=3e-3))
    familiar, new = torch.eye(4)[[0, 1, 2, 0, 1, 2, 0, 1, 2]], torch.eye(4)[[3]]
    update.update(seen(familiar))
    before = both.bonus(familiar).mean()
    for _ in range(60):
        update.update(seen(familiar))
    assert both.bonus(familiar).mean() < 0.1 * before
    assert both.bonus(new).mean() > 5 * both.bonus(familiar).mean()


def test_the_random_network_never_changes_and_the_other_learns() -> None:
    both = networks()
    update = RNDUpdate(both, CONFIG)
    target = [parameter.clone() for parameter in both.target.parameters()]
    predictor = [parameter.detach().clone() for parameter in both.predictor.parameters()]
    metrics = update.update(seen(torch.rand(9, 3)))
    assert all(torch.equal(a, b) for a, b in zip(target, both.target.parameters(), strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(predictor, both.predictor.parameters(), strict=True))
    assert metrics["rows"] == 8
    assert metrics["weight_delta"] > 0
    assert update.train_steps == 2


def test_every_observation_counts_once_and_nothing_that_is_not_real() -> None:
    """The row behind the last is the next segment's first; true last observations of episodes are nobody's row."""
    both = networks((1,))
    rows = torch.tensor([[1.0], [2.0], [float("nan")], [float("nan")]])
    RNDUpdate(both, CONFIG).update(seen(rows, final=torch.tensor([[9.0]]), valid=2))
    assert float(both.observations.count) == 3
    assert float(both.observations.mean) == 4
    assert float(both.returns.count) == 2


def test_what_is_not_finite_is_refused_before_anything_is_changed() -> None:
    both = networks((1,))
    with raises(TrainingFault, "observation_not_finite"):
        RNDUpdate(both, CONFIG).update(seen(torch.tensor([[1.0], [float("nan")], [0.0]])))
    assert float(both.observations.count) == 0


def test_an_update_resumes_exactly_where_it_was() -> None:
    one, other = networks(), networks()
    first, second = RNDUpdate(one, CONFIG), RNDUpdate(other, CONFIG)
    first.update(seen(torch.rand(9, 3)))
    other.load_state_dict(one.state_dict())
    second.load_state(first.state())
    batch = seen(torch.rand(9, 3))
    assert first.update(batch) == second.update(batch)
    assert second.train_steps == first.train_steps == 4
