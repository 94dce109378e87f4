"""Where measurements of a run go besides its folder: Weights & Biases, MLflow."""
