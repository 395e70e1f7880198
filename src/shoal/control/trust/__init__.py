"""Who may join and which secrets a workload gets: join tokens, certificates, sealed secrets."""
