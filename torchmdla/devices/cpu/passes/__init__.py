"""Passes over a program's steps."""
