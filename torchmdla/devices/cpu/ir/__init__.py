"""Intermediate representation of the CPU device: loop programs, their text, and checks."""
