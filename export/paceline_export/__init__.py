"""Turns a Gemma 4 checkpoint and its MTP drafter into a bundle of on-device graphs."""
