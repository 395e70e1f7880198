"""How a command line reaches a control plane: options, the profile of `shoal up`, the session, tab completion.

Shared by all commands. Nothing here knows what a command does with its connection.
"""
