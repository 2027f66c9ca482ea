"""Translation of a program from the Torch dialect to steps on buffers."""
