"""Consistent cuts of a running plan: the protocol (pure), where they are kept, and who asks for them."""
