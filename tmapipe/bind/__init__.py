"""Binding: matches the tensors of a call with the stages of a schedule, and checks them."""
