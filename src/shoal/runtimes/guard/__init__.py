"""The guard of at-most-one containers: kills them at their deadline, whatever becomes of agent and engine.

A container is no child of the keeper, so no watchdog of the keeper can be its parent. Instead two guard processes read
one table of deadlines in shared memory (`table`), and each kills every process of a container whose deadline has
passed (`process`). Either is enough, so one of them may be stopped or killed. The agent (`client`) starts them when
they are needed, adds a container before it is started, extends deadlines by writing the table, and starts a guard
again that was killed. What cannot be promised: with both guards killed and no agent there to start them again, a
container runs on until the next agent comes up, which kills it.
"""
