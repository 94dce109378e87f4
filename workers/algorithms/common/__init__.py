"""What several algorithms share: returns, advantages, minibatches, Adam."""
