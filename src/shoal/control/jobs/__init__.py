"""Jobs in the control plane: their rows, the requests of people, and the loop that asks engines what comes next."""
