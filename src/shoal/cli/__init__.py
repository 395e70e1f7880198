"""The command line. `main` builds the command tree; each room holds one kind of command or what commands share."""
