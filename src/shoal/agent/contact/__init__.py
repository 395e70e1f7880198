"""Contact with the control plane: joining, registration, heartbeats, the stream, terms and certificate renewal."""
