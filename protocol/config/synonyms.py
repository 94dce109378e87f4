"""What other libraries call our keys, for whoever writes a configuration by the names that he knows."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["SYNONYMS"]

_BATCH = "n_steps * num_envs / batch_size"
SYNONYMS: Mapping[str, tuple[str, str]] = {
    "activation_fn": ("policy.network.activation", ""),
    "anneal_lr": ("policy.algorithm.anneal_learning_rate", ""),
    "batch_size": ("policy.algorithm.minibatches", _BATCH),
    "buffer_size": ("policy.algorithm.buffer_capacity", ""),
    "clip_coef": ("policy.algorithm.clip", ""),
    "clip_param": ("policy.algorithm.clip", ""),
    "clip_range": ("policy.algorithm.clip", ""),
    "clip_range_vf": ("policy.algorithm.value_clip", ""),
    "ent_coef": ("policy.algorithm.entropy_coefficient", ""),
    "entropy_coeff": ("policy.algorithm.entropy_coefficient", ""),
    "env": ("environment.id", ""),
    "env_id": ("environment.id", ""),
    "env_name": ("environment.id", ""),
    "exploration_final_eps": ("policy.algorithm.epsilon_min", ""),
    "exploration_initial_eps": ("policy.algorithm.epsilon", ""),
    "fcnet_hiddens": ("policy.network.hidden", ""),
    "gae_lambda": ("policy.algorithm.gae_lambda", ""),
    "gamma": ("policy.algorithm.gamma", ""),
    "grad_clip": ("policy.max_grad_norm", ""),
    "gradient_steps": ("policy.algorithm.replay_ratio", "gradient_steps * batch_size / (train_freq * num_envs)"),
    "hidden_sizes": ("policy.network.hidden", ""),
    "lambda_": ("policy.algorithm.gae_lambda", ""),
    "learning_starts": ("policy.algorithm.learning_starts", ""),
    "lr": ("policy.learning_rate", ""),
    "minibatch_size": ("policy.algorithm.minibatches", _BATCH),
    "n_envs": ("environment.copies", ""),
    "n_epochs": ("policy.algorithm.epochs", ""),
    "n_steps": ("policy.segment_length", ""),
    "net_arch": ("policy.network.hidden", ""),
    "norm_obs": ("policy.algorithm.normalize_observation", ""),
    "norm_reward": ("policy.algorithm.normalize_return", ""),
    "num_env_runners": ("actors", ""),
    "num_envs": ("environment.copies", ""),
    "num_epochs": ("policy.algorithm.epochs", ""),
    "num_minibatches": ("policy.algorithm.minibatches", ""),
    "num_sgd_iter": ("policy.algorithm.epochs", ""),
    "num_steps": ("policy.segment_length", ""),
    "num_workers": ("actors", "environment.processes for processes of one actor"),
    "rollout": ("policy.segment_length", ""),
    "rollout_fragment_length": ("policy.segment_length", ""),
    "target_update_interval": ("policy.algorithm.target_update_freq", "counted in updates"),
    "total_timesteps": ("steps", ""),
    "train_batch_size": ("policy.algorithm.segments", "train_batch_size / segment_length"),
    "train_for_env_steps": ("steps", ""),
    "train_freq": ("policy.algorithm.replay_ratio", "gradient_steps * batch_size / (train_freq * num_envs)"),
    "update_epochs": ("policy.algorithm.epochs", ""),
    "use_lstm": ("policy.network.recurrent", "lstm"),
    "use_rnn": ("policy.network.recurrent", "gru or lstm"),
    "vf_clip_param": ("policy.algorithm.value_clip", ""),
    "vf_coef": ("policy.algorithm.value_coefficient", ""),
    "vf_loss_coeff": ("policy.algorithm.value_coefficient", ""),
}
"""Its name there -> our key, and what to write for its value where that is another one."""
