"""The shared vocabulary: frozen values without I/O, known to the control plane, the agents and the clients alike."""
