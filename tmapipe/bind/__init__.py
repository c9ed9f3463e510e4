"""Tensors bound to a schedule's arguments."""
