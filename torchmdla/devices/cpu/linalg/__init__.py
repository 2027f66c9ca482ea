"""From the Torch dialect to steps: what a program computes, on which buffers."""
