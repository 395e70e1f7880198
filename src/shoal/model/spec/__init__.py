"""Specs of workloads: the four kinds, the parts they share, and their words."""
