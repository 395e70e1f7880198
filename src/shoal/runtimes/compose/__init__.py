"""The compose runtime: workloads as compose projects, run through the compose command that is found.

source    the project's files: given inline, or from a git repository
project   the rules of a project, and what is added to it (pure)
command   which compose command there is, and how it is called
"""
