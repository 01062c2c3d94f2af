"""Scenarios that ship with Molt, and the ladders, traces, prompts and profiles they name: data, no code."""
