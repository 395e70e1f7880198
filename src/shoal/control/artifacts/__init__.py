"""The artifacts of the control plane: who refers to which blob, and the service that takes and gives them."""
