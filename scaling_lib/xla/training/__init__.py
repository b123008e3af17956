"""Training on simulated devices, one way of cutting the step after the other, by hand: what labs 5a to 5e are built from."""
