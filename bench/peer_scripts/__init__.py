"""Scripts that run in the environments of peers: they import what is compared, and nothing of ours."""
