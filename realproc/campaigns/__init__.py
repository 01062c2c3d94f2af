"""Campaigns: hundreds of pairs, a process that holds its model and one that changes it under the same pressure."""
