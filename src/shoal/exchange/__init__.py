"""Long-lived streams of Arrow batches between tasks, with byte credits, control frames and a token per job and epoch.

It knows no dataflow: parameter servers and look-ups use it as well. `base` has the protocol, `local` and `unix` are its
transports, and `shoal.testing.suites.exchange` says what each of them promises.
"""
