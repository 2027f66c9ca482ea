"""TorchScript as it stands, in the Torch dialect, for people to read and passes to run."""
