"""What other libraries call our keys, for whoever writes a configuration by the names that he knows."""

from __future__ import annotations

from collections.abc import Mapping

_BATCH = "n_steps * num_envs / batch_size"
_SAME = {
    "actors": "num_env_runners",
    "checkpoint_steps": "save_freq",
    "environment.copies": "n_envs num_envs num_envs_per_env_runner",
    "environment.id": "env env_id env_name",
    "environment.settings": "env_config env_kwargs kwargs",
    "evaluation.episodes": "n_eval_episodes",
    "evaluation.every_steps": "eval_freq",
    "policy.algorithm": "algo",
    "policy.algorithm.anneal_learning_rate": "anneal_lr",
    "policy.algorithm.atoms": "n_atoms",
    "policy.algorithm.buffer_capacity": "buffer_size",
    "policy.algorithm.clip": "clip_coef clip_eps clip_epsilon clip_param clip_range clip_ratio",
    "policy.algorithm.double": "double_q",
    "policy.algorithm.entropy_coefficient": "ent_coef entropy_coef entropy_coeff",
    "policy.algorithm.epochs": "n_epochs num_epochs num_sgd_iter update_epochs",
    "policy.algorithm.epsilon": "epsilon_start exploration_initial_eps start_e",
    "policy.algorithm.epsilon_min": "end_e epsilon_finish exploration_final_eps",
    "policy.algorithm.exploration_fraction": "exploration_fraction",
    "policy.algorithm.exploration_steps": "epsilon_anneal_time",
    "policy.algorithm.gae_lambda": "lambda_",
    "policy.algorithm.minibatches": "num_minibatches",
    "policy.algorithm.normalize_advantage": "norm_adv",
    "policy.algorithm.normalize_observation": "norm_obs",
    "policy.algorithm.normalize_return": "norm_reward",
    "policy.algorithm.tau": "polyak",
    "policy.algorithm.value_clip": "clip_range_vf vf_clip_param",
    "policy.algorithm.value_coefficient": "value_coef value_loss_coef vf_coef vf_loss_coeff",
    "policy.learning_rate": "lr",
    "policy.max_grad_norm": "grad_clip grad_norm_clip",
    "policy.network.activation": "activation_fn",
    "policy.network.hidden": "fcnet_hiddens hidden_sizes net_arch",
    "policy.network.share_layers": "vf_share_layers",
    "policy.publish_interval": "broadcast_interval",
    "policy.segment_length": "n_steps num_steps rollout rollout_fragment_length",
    "steps": "n_timesteps num_timesteps t_max timesteps total_steps total_timesteps train_for_env_steps",
}
"""Our key -> its names there, under which its value is the same."""
SYNONYMS: Mapping[str, tuple[str, str]] = {
    **{name: (key, "") for key, names in _SAME.items() for name in names.split()},
    "batch_size": ("policy.algorithm.minibatches", _BATCH),
    "gradient_steps": ("policy.algorithm.replay_ratio", "gradient_steps * batch_size / (train_freq * num_envs)"),
    "hidden_dim": ("policy.network.hidden", "[hidden_dim, hidden_dim]"),
    "lstm_hidden_size": ("policy.network.core", "{name: lstm, size: lstm_hidden_size}"),
    "minibatch_size": ("policy.algorithm.minibatches", _BATCH),
    "num_gpus": ("device", "cuda"),
    "num_workers": ("actors", "environment.processes for processes of one actor"),
    "optimizer": ("", "it is always Adam"),
    "target_kl": ("", "policy.algorithm.clip bounds an update"),
    "target_network_frequency": ("policy.algorithm.target_update_freq", "target_network_frequency / train_frequency"),
    "target_update_interval": ("policy.algorithm.target_update_freq", "counted in updates"),
    "tensorboard_log": ("", "TensorBoard's files are in the run's folder"),
    "train_batch_size": ("policy.algorithm.segments", "train_batch_size / segment_length"),
    "train_batch_size_per_learner": ("policy.algorithm.segments", "train_batch_size_per_learner / segment_length"),
    "train_freq": ("policy.algorithm.replay_ratio", "gradient_steps * batch_size / (train_freq * num_envs)"),
    "train_frequency": ("policy.algorithm.replay_ratio", "batch_size / (train_frequency * num_envs)"),
    "recurrent": ("policy.network.core", ""),
    "use_lstm": ("policy.network.core", "lstm"),
    "use_rnn": ("policy.network.core", "gru or lstm"),
    "verbose": ("", "--no-progress hides the progress, and logs are in the run's folder"),
    "wandb": ("loggers", "[wandb]"),
}
"""Its name there -> our key, and what to write for its value where that is another one; where there is no such key, why
none is needed."""
VARIANTS: Mapping[str, tuple[str, ...]] = {
    "ddqn": ("dqn",),
    "ippo": ("ppo",),
    "mappo": ("ppo", "central_critic: true"),
    "rainbow": ("c51", "dueling: true, noisy: true, epsilon: 0, priority_alpha: 0.5, n_step: 3"),
    "rppo": ("ppo", "policy.network.core: lstm"),
}
"""Other names of algorithms -> ours, and the keys that make it so."""
